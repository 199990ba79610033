"""The language of what a kernel gets and gives: `"x.shape[0] // 2"`, `"ptr(x), size(x,0), eps"`."""
