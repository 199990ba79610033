"""The matcher in plain Python: the oracle of the native one. BRINGUP_ENGINE=python takes it.

`matcher`: the search. `lookahead`: choices that cannot fit. `predicates`: single arguments and
tensors. `linking`: control edges. `boundary`: whether a match can be taken out.
"""
