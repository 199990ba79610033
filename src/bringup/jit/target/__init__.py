"""What kernels are built for, and the compilers that do it. One module for each vendor.

`target`: the interface. `toolchain`: what is known of a compiler. `compiler_process`: running one.
`flags`: macros and options in canonical form. `debug`: what is added for debugging. `machine`: what
this processor can run. `gnu`, `cuda` and `nvrtc`, `ascend`, `triton`: the targets there are.
"""
