"""Sources whose dtypes, layouts and choices are macros.

`template`: what is declared, and resolved against arguments. `params`: what one call makes of it.
`glue`: the generated entry.
"""
