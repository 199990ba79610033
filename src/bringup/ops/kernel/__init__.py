"""Kernel files and libraries as operators. The call itself is native (native/torch/ops).

`kernel_op`: the definition. `methods`: what can be registered later. `kernel_source`, `variants`:
which binary. `c_function`: functions as they are. `backward`: backward operators. `dynamo`: what
torch.compile sees. `autotune`: tile sizes measured on calls. `without_library`:
what an operator is without the library that links libtorch.
"""
