"""From a source to a binary: memory, disk, other machines, and at last the compiler.

`compilation`: `compile`, single flight, the frozen state. `lookups`: where it looks, in order.
`building`: one build for all processes. `publish`, `sharing`: into the store, into the tier.
`events`: what listeners get. `progress`: showing it. `spec`: a kernel as a value. `warmup`,
`difference`: what is said about a kernel that is missing.
"""
