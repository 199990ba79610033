"""Before a kernel is needed: built, brought along, measured.

`prebuild`: many kernels, here or elsewhere. `entry_transfer`: an entry on its way between machines.
`use_bundle`: what packages bring. `autotune`, `tuning_results`: tile sizes measured, and kept.
"""
