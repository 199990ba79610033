"""What can be registered for any operator.

`methods`: what an operator is given. `autograd`, `vmap`, `functionalize`: kernels at those dispatch
keys. `python_kernel`: what runs around a Python kernel. `definition_rollback`: taking back
what a plugin defined. `handle_lifetime`: handles that outlive their operator. `pickling`: operators
by name.
"""
