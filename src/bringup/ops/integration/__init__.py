"""Where others' code meets operators: theirs (`adopt`), Triton kernels (`triton_op`), packages
(`plugins`), and models that exist already (`attention`, `replace`).
"""
