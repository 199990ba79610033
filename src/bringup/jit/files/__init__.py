"""Files as jit sees them, knowing neither sources nor compilers.

`identity`: stamps and digests. `headers`: what a build read and where it looked. `elf`, `depfile`,
`archive`: formats. `layout`: folders of a store. `locks`, `entry_usage`: other processes.
"""
