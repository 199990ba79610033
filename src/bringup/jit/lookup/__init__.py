"""From a source to a binary: memory, disk, other machines, and at last the compiler.

`compilation`: `compile`, single flight, the frozen state. `lookup_or_build`: the steps on disk.
`events`: what happens meanwhile. `progress`: showing it. `spec`: a kernel as a value. `warmup`,
`difference`: what is said about a kernel that is missing.
"""
