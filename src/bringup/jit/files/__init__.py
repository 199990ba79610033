"""Files as jit sees them: what identifies one, what a binary says of itself, where a store keeps
what, and who uses it. Knows neither sources nor compilers.

`identity`: stamps and digests. `headers`: what a build read and where it looked. `elf`, `depfile`:
two formats. `layout`: folders of a store. `locks`, `entry_usage`: other processes.
"""
