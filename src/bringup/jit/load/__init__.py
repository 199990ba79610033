"""A binary on disk becomes a kernel of this process.

`binary`: loading and unloading. `prebuilt`: libraries that are built already. `cuda_kernel`:
device code on a GPU.
"""
