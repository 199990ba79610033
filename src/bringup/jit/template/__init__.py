"""Sources whose dtypes, layouts and choices are macros: `template` declares them, `params` is what
one call makes of it, `glue` the generated entry.
"""
