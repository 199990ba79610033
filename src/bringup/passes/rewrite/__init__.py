"""Putting something where a match was.

`rewriter`: the replacement. `placement`: where it may stand. `fusing`, `subgraph`: parts that a
pass picked by hand. `shapes`: of a replacement that stands nowhere yet.
"""
