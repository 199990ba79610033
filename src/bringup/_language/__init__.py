"""The language that says what a kernel gets and what its outputs are: `"x.shape[0] // 2"`,
`"ptr(x), size(x,0), eps"`.

`signature`: arguments, their types and layouts. `expression`: whole numbers over them, for output
rules, input constraints, grids and buckets. `items`: one item of a list of arguments. `c_call`: the
list as the arguments of a C function.
"""
