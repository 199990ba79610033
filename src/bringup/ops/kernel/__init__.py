"""Kernel files and libraries as operators. The call itself is native (native/torch/ops).

`kernel_op`, `methods`: the definition, and what is registered later. `kernel_source`, `variants`:
which binary. `c_function`: functions as they are. `dynamo`: what torch.compile sees.
`without_library`: operators in a process without the native library.
"""
