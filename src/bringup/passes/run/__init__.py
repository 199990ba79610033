"""Running passes, and what came of it.

`executor`: over a graph and its subgraphs. `session`: one pass on one graph. `targets`: what it may
rewrite. `controls`, `dump`, `verify`: what a run is asked besides. `events`: what happens.
`folding`: constants.
"""
