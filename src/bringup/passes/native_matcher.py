"""Finding a pattern with the native engine: the same answers as `matcher.Matcher`, faster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bringup import ir, settings
from bringup.ir import Node
from bringup.passes._engine import MatcherCore
from bringup.passes.bindings import Frame
from bringup.passes.boundary import Candidate
from bringup.passes.match import MatchResult
from bringup.passes.matcher import Matcher
from bringup.passes.patterns import Pattern
from bringup.passes.program import Program, SubPattern, program_of
from bringup.passes.report import NearMiss

__all__ = ["NativeMatcher", "make_matcher"]


def make_matcher(
    pattern: Pattern, graph: ir.Graph, storages: ir.Storages
) -> NativeMatcher | Matcher:
    """The matcher that `BRINGUP_ENGINE` names: native, or the reference in Python."""
    kind = Matcher if settings.engine() == "python" else NativeMatcher
    return kind(pattern, graph, storages)


class NativeMatcher:
    """One pattern against the nodes of one graph. See `Matcher`."""

    def __init__(self, pattern: Pattern, graph: ir.Graph, storages: ir.Storages) -> None:
        self.pattern = pattern
        self._program = program_of(pattern)
        self._core = MatcherCore(self._program.core, graph._core, storages.core)

    @property
    def near_miss(self) -> NearMiss | None:
        """The refusal that came furthest over all calls."""
        miss = self._core.near_miss()
        return None if miss is None else NearMiss(*miss)

    def candidates(self) -> tuple[Node, ...]:
        """See `Matcher.candidates`."""
        return self._core.candidates()

    def match_at(self, target: Node) -> Candidate | None:
        """See `Matcher.match_at`."""
        found = self._core.match_at(target)
        return None if found is None else _candidate(self._program, found)

    def matches(self) -> Iterator[Candidate]:
        """See `Matcher.matches`. The search runs without the GIL."""
        while (found := self._core.next()) is not None:
            yield _candidate(self._program, found)

    def refuse(self, node: Node | None, reason: str) -> None:
        """See `Matcher.refuse`."""
        self._core.refuse(node, reason)


def _candidate(program: Program, found: tuple[Any, ...]) -> Candidate:
    listed, before, hoist = found
    frames: dict[int, Frame] = {}
    for number, sub, parent, *_ in listed:
        above = None if parent is None else frames[parent]
        frames[number] = Frame(program.subs[sub].pattern, above)
    for number, sub, _, *tables in listed:
        _fill(frames[number], program.subs[sub], tables, frames)
    return Candidate(MatchResult(frames[0]), before, hoist)


def _fill(frame: Frame, sub: SubPattern, tables: list[list[Any]], frames: dict[int, Frame]) -> None:
    nodes, inputs, choices, names, sizes, lists = tables
    pattern = sub.pattern
    frame.nodes = _bound(pattern.nodes, nodes)
    frame.inputs = _bound(pattern.graph.inputs, inputs)
    frame.chosen = _bound(sub.choices, choices)
    frame.names = {name: item[0] for name, item in _bound(sub.names, names).items()}
    frame.sizes = _bound(sub.sizes, sizes)
    frame.lists = {
        name: [(value, frames[item]) for value, item in items]
        for name, items in _bound(sub.lists, lists).items()
    }


def _bound(keys: tuple[Any, ...], items: list[Any]) -> dict[Any, Any]:
    return {key: item for key, item in zip(keys, items, strict=True) if item is not None}
