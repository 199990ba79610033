"""Where others' code meets operators.

`adopt`: operators that other code has registered. `triton_op`: Triton kernels. `plugins`:
files and packages that define operators. `attention`, `replace`: models that exist already.
"""
