"""What kernels are built for, and the compilers that do it. One module for each vendor.

`target`: the interface. `toolchain`, `compiler_process`: a compiler, and running it. `flags`,
`debug`: options. `machine`: what this processor can run.
"""
