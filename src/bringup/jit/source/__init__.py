"""What is compiled, and what its text says.

`source`: a file or a text, and its entry. `lexer`: what in a text is code. `include_scan`: the
headers and probes in it. `declaration`, `param_struct`: what it says of a function and of a
parameter struct.
"""
