"""Builds on disk: found, verified, published, bounded, carried elsewhere.

`cache`: the store. `entries`: what it answers with. `index`, `call_records`, `portable_key`: from a
question to an entry. `failures`: what did not compile. `prune`: what has to go. `bundle`: entries
in one file. `shared_tier`: entries that machines share. `active_cache`: which store is in use.
"""
