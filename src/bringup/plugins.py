"""Plugins: the one discovery for drivers, operators and passes.

Owns finding and isolating plugins: a broken one is reported, the others load. Does not know what
a driver, an operator or a pass is.
"""
