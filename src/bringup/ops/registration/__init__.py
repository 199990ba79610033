"""What can be registered for any operator: `methods`.

`autograd`, `vmap`, `functionalize`: kernels at those keys. `python_kernel`: what runs around a
Python kernel. `definition_rollback`: taking a plugin's back. `handle_lifetime`: handles that
outlive their operator. `pickling`: by name.
"""
