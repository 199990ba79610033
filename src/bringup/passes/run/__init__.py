"""Running passes, and what came of it.

`executor`: over a graph and its subgraphs. `session`: one pass on one graph. `programs`: its
patterns. `library_host`: what a pass of a library asks. `controls`, `dump`, `verify`: what a run is
asked besides. `events`: what happens. `folding`: constants.
"""
