"""What is compiled, and what its text says.

`source`: a file or a text, and its entry. `lexer`: what is code. `include_scan`: headers and
probes. `declaration`, `param_struct`: what it says of functions and structs. `element`, `writer`:
entries that are written for it.
"""
