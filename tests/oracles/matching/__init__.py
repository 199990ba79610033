"""The matcher of patterns in plain Python: the oracle of the native one.

`matcher`: the search. `lookahead`: choices that cannot fit. `predicates`: single arguments and
tensors. `linking`: control edges. `boundary`: whether a match can be taken out. `placement`: where
its replacement may stand. `bindings`: what is bound during the search.
"""

from collections.abc import Iterator

import pytest
from tests.oracles.matching.matcher import Matcher

from bringup import ir
from bringup.passes import Pattern
from bringup.passes.matching.native_matcher import NativeMatcher
from bringup.passes.patterns.match import RewriteCandidate
from bringup.passes.run import targets

__all__ = ["Matcher", "compare_passes_with_oracle", "run_passes_with_oracle"]


class _Compared(NativeMatcher):
    """The native matcher, each of its matches compared with the oracle's."""

    def __init__(self, pattern: Pattern, graph: ir.Graph, aliases: ir.AliasAnalysis) -> None:
        super().__init__(pattern, graph, aliases)
        self._oracle = Matcher(pattern, graph, aliases)

    def matches(self) -> Iterator[RewriteCandidate]:
        expected = self._oracle.matches()
        for found in super().matches():
            assert _facts(found) == _facts(next(expected))
            yield found
        assert next(expected, None) is None
        assert self.near_miss == self._oracle.near_miss

    def refuse(self, node: ir.Node | None, reason: str) -> None:
        super().refuse(node, reason)
        self._oracle.refuse(node, reason)


def _facts(candidate: RewriteCandidate) -> tuple[object, ...]:
    result = candidate.result
    found = (result.get_matched_nodes(), result.inputs, result.outputs, result.bound_nodes())
    return *found, candidate.before, tuple(candidate.hoist)


def run_passes_with_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs of passes look for patterns with the oracle until `monkeypatch` is undone."""
    monkeypatch.setattr(targets, "NativeMatcher", Matcher)


def compare_passes_with_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs of passes compare what is found with the oracle, and fail where it finds something
    else; for passes of libraries, whose hooks ask the native matcher.
    """
    monkeypatch.setattr(targets, "NativeMatcher", _Compared)
