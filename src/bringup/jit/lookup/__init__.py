"""From a source to a binary: memory, disk, other machines, and at last the compiler.

`compilation`: `compile`, single flight, freezing. `lookups`: where it looks, in order. `building`,
`publish`, `sharing`: one build for all. `events`, `progress`: what is heard and seen of it. `spec`:
a kernel as a value. `warmup`, `difference`: what is said of a missing one.
"""
