"""Python functions as operators: `custom_op` and its `structured_arguments`; `library`: `Library`,
`impl` and the `register_*` functions, by an operator's name.
"""
