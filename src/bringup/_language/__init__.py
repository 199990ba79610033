"""The language of what a kernel gets and gives: `"x.shape[0] // 2"`, `"ptr(x), size(x,0), eps"`.

`signature`: arguments, types, layouts. `reader`: from texts to programs. `expression`: what they
are for a call. `c_call`: what else a kernel is given.
"""
