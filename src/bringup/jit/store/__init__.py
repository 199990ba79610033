"""Builds on disk: found, verified, published, bounded, carried elsewhere.

`cache`: the store. `entries`: what it answers with. `index`, `calls`, `portable`: from a question
to an entry. `failures`: what did not compile. `prune`: what has to go. `bundle`: entries in one
file. `tier`: entries that machines share. `private`: which store is in use.
"""
