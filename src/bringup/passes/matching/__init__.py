"""Finding a pattern with the native engine.

`native_matcher`: the search. `program`: a pattern made ready for it.
"""
