"""What is compiled, and what its text says.

`source`: a file or a text, and its entry. `lexer`: what in a text is code. `scan`: the headers and
probes in it. `declaration`, `struct`: what it says of a function and of a parameter struct.
"""
