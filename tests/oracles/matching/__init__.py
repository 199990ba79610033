"""The matcher of patterns in plain Python: the oracle of the native one.

`matcher`: the search. `lookahead`: choices that cannot fit. `predicates`: single arguments and
tensors. `linking`: control edges. `boundary`: whether a match can be taken out. `placement`: where
its replacement may stand. `bindings`: what is bound during the search.
"""

from collections.abc import Iterator

import pytest
from tests.oracles.matching.matcher import Matcher

from bringup import ir
from bringup.passes.patterns.match import MatchResult, PlacedMatch
from bringup.passes.run.session import Session

__all__ = ["Matcher", "compare_passes_with_oracle"]


class _Searches:
    """The oracle's matches in the searches of one session, beside those of the engine."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ended = 0
        self._expected: Iterator[PlacedMatch] | None = None

    def _next(self) -> PlacedMatch | None:
        graph, programs = self._session.graph, self._session._programs
        if self._expected is None:
            pattern = programs[self._ended % len(programs)].subs[0].pattern
            self._aliases = ir.AliasAnalysis(graph)
            self._expected = Matcher(pattern, graph, self._aliases).matches()
        self._aliases.rebuild()
        return next(self._expected, None)

    def compare(self, found: MatchResult) -> None:
        expected = self._next()
        assert expected is not None, f"the oracle does not find {found}"
        assert _facts(found) == _facts(expected.result)

    def end(self) -> None:
        if self._session._descriptor.max_rewrites is None:  # else the search may end early
            more = self._next()
            assert more is None, f"the oracle finds {more.result} too"
        self._ended += 1
        self._expected = None


def _facts(found: MatchResult) -> tuple[object, ...]:
    sizes = {name: str(size) for name, size in found._frame.sizes.items()}
    return (found.get_matched_nodes(), found.inputs, found.outputs, found.bound_nodes(), sizes)


def compare_passes_with_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs of passes compare what is found with the oracle, and fail where it finds something
    else, until `monkeypatch` is undone.
    """
    take_match, end_search = Session.take_match, Session.end_search
    searches: dict[Session, _Searches] = {}

    def compared(session: Session, *found: object) -> None:
        take_match(session, *found)  # type: ignore[arg-type]
        assert session._match is not None
        searches.setdefault(session, _Searches(session)).compare(session._match)

    def ended(session: Session) -> None:
        end_search(session)
        if session._programs:
            searches.setdefault(session, _Searches(session)).end()

    monkeypatch.setattr(Session, "take_match", compared)
    monkeypatch.setattr(Session, "end_search", ended)
