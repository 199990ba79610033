"""Python functions as operators, and the functions that register by an operator's name.

`custom_op`: the decorator. `structured_arguments`: structured arguments. `library`: `Library`,
`impl` and the `register_*` functions.
"""
