"""The small language that says what a kernel gets: `"ptr(x), size(x,0), eps"`.

`signature`: arguments, their types and layouts. `items`: one item of such a list. `c_call`: the
list as the arguments of a C function. `predicate`: conditions over sizes.
"""
