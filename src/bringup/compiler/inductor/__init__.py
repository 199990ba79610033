"""Inductor: the kit's passes in it, and its code generator for the devices of drivers.

- `hooks`: passes as Inductor's custom graph passes
- `torch_private`: the members of torch that the code generator leans on, and a check of them
- `prelude`: helpers that generated code has in every language
- `special`: functions beyond those of math.h
- `indices`: index expressions as text
- `functions`: what is computed for one element
- `segments`: the loops of a kernel and what they accumulate
- `loop_code`: what of a loop's code may stand before or behind it
- `kernel`: what Inductor fused as a loop nest
- `nests`: nests that one launch computes, as a function
- `scheduling`: which nodes become a kernel, and the lines of the wrapper that define and call it
- `pairs`: complex numbers as pairs of real ones
- `fallback`: which nodes stay the device's eager operators
- `search`: which generated node makes a result wrong
- `launch`: what the wrapper calls
- `registration`: what torch knows of all this
"""
