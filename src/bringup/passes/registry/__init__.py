"""Which passes there are, and which of them run.

`descriptor`: what is known of one. `registry`: the engine's, as Python sees it. `registering`: the
decorators. `selection`: versions, switches, order. `loader`: plugins.
"""
