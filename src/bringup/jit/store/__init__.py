"""Builds on disk: found, verified, published, bounded, carried elsewhere.

`cache`: the store. `entries`: its answers. `index`, `call_records`, `portable_key`: from a question
to an entry. `failures`: what did not compile. `prune`: what has to go. `bundle`, `shared_tier`:
entries for other machines. `active_cache`: which store is in use.
"""
