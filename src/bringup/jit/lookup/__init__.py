"""From a source to a binary: memory, disk, other machines, and at last the compiler.

`compilation`: `compile`, single flight, the frozen state. `lookups`: where it looks, in order.
`building`: a build that nobody else makes. `publish`, `sharing`: into the store, into the tier.
`events`: what happens meanwhile. `progress`: showing it. `spec`: a kernel as a value. `warmup`,
`difference`: what is said about a kernel that is missing.
"""
