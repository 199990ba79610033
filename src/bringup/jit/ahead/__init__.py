"""Before a kernel is needed: built, brought along, measured.

`prebuild`: many kernels, here or elsewhere. `shipping`: an entry on its way between machines.
`use_bundle`: what packages bring. `autotune`, `tuning`: tile sizes measured, and kept.
"""
