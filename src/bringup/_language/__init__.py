"""The language that says what a kernel gets and what its outputs are: `"x.shape[0] // 2"`,
`"ptr(x), size(x,0), eps"`.

`signature`: arguments, their types and layouts. `reader`: from texts to programs. `expression`:
what a program is for the arguments of a call. `c_call`: what else a kernel can be given.
"""
