"""The matcher of patterns in plain Python: the oracle of the native one.

`matcher`: the search. `lookahead`: choices that cannot fit. `predicates`: single arguments and
tensors. `linking`: control edges. `boundary`: whether a match can be taken out. `placement`: where
its replacement may stand. `bindings`: what is bound during the search.
"""

import pytest
from tests.oracles.matching.matcher import Matcher

from bringup.passes.run import targets

__all__ = ["Matcher", "run_passes_with_oracle"]


def run_passes_with_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs of passes look for patterns with the oracle until `monkeypatch` is undone."""
    monkeypatch.setattr(targets, "NativeMatcher", Matcher)
