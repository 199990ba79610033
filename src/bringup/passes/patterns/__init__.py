"""Patterns, and what a match of one tells.

`pattern`: graphs whose inputs are wildcards, and lists of open length. `elements`: open arguments,
constants, alternatives. `convert`: what a hook returned, as a graph. `match`, `bindings`: what was
found. `matcher_config`: what is compared beyond operators.
"""
