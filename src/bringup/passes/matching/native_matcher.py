"""Finding a pattern in a graph, with the native engine. `tests/oracles/matching` is its oracle."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from bringup import ir
from bringup.ir import Node
from bringup.passes.engine import MatcherCore, PlacedMatchCore
from bringup.passes.matching.program import Program, SubPattern, program_of
from bringup.passes.patterns.bindings import PatternFrame
from bringup.passes.patterns.match import MatchResult, PlacedMatch
from bringup.passes.patterns.pattern import Pattern
from bringup.passes.report import NearMiss

_SizeNamed: TypeAlias = Callable[[str], ir.Dim]


class NativeMatcher:
    """One pattern against the nodes of one graph; `near_miss` is the refusal that came furthest."""

    def __init__(self, pattern: Pattern, graph: ir.Graph, aliases: ir.AliasAnalysis) -> None:
        self.pattern = pattern
        self._graph = graph
        self._program = program_of(pattern)
        self._core = MatcherCore(self._program.core, graph._core, aliases.core)
        self._last: FoundMatch | None = None

    @property
    def near_miss(self) -> NearMiss | None:
        """Return the refusal that came furthest over all calls."""
        miss = self._core.near_miss()
        return None if miss is None else NearMiss(*miss)

    def candidates(self) -> tuple[Node, ...]:
        """Return the nodes of the anchor's types; when there is none, the near miss says so."""
        return self._core.candidates()

    def match_at(self, target: Node) -> PlacedMatch | None:
        """Return the first match whose first output is computed by `target`, or None."""
        self._forget_last()
        return self._placed(self._core.match_at(target))

    def matches(self) -> Iterator[PlacedMatch]:
        """Give every match among the candidates, in order, under edits, found without the GIL."""
        self._forget_last()
        while (found := self._placed(self._core.next())) is not None:
            yield found
            self._forget_last()

    def _placed(self, found: tuple[Any, ...] | None) -> PlacedMatch | None:
        if found is None:
            return None
        core, nodes, inputs, outputs, before, hoist = found
        match = self._last = FoundMatch(self._program, core, self._graph, nodes, inputs, outputs)
        return PlacedMatch(match, before, hoist)

    def _forget_last(self) -> None:
        """Let the match found last look inside while it can, unless it has expired."""
        if self._last is not None and not self._last.is_expired:
            self._last.look_inside()
        self._last = None

    def refuse(self, node: Node | None, reason: str) -> None:
        """Refuse a candidate: the refusal that came furthest is remembered."""
        self._core.refuse(node, reason)


class FoundMatch(MatchResult):
    """A match of the engine in `graph`, asked on demand what its pieces stand for."""

    def __init__(
        self,
        program: Program,
        core: PlacedMatchCore,
        graph: ir.Graph,
        nodes: tuple[Node, ...],
        inputs: tuple[ir.Value | None, ...],
        outputs: tuple[ir.Value, ...],
    ) -> None:
        self._program, self._core, self.graph = program, core, graph
        self._pattern = program.subs[0].pattern
        self._nodes, self._inputs, self._outputs = nodes, inputs, outputs
        self._expired = False
        self._items = []
        if program.has_arguments:  # they are read before an edit moves them
            self.look_inside()

    def look_inside(self) -> PatternFrame:
        return self._frame

    @functools.cached_property
    def _frame(self) -> PatternFrame:  # type: ignore[override]
        dialect = self.graph.dialect
        named = ir.SymbolicDim.named if dialect is None else dialect.size_named
        return _root_frame(self._program, self._core.frames(), named)

    @property
    def inputs(self) -> tuple[ir.Value | None, ...]:
        self._live()
        return self._inputs

    @property
    def outputs(self) -> tuple[ir.Value, ...]:
        self._live()
        return self._outputs

    def get_matched_nodes(self) -> tuple[Node, ...]:
        self._live()
        return self._nodes


def _root_frame(
    program: Program, listed: list[tuple[Any, ...]], size_named: _SizeNamed
) -> PatternFrame:
    frames: dict[int, PatternFrame] = {}
    for number, sub, parent, *_ in listed:
        above = None if parent is None else frames[parent]
        frames[number] = PatternFrame(program.subs[sub].pattern, above)
    for number, sub, _, *tables in listed:
        _fill(frames[number], program.subs[sub], tables, frames)
    for frame in frames.values():
        for name, size in frame.sizes.items():
            frame.sizes[name] = size if isinstance(size, int) else size_named(str(size))
    return frames[0]


def _fill(
    frame: PatternFrame, sub: SubPattern, tables: list[list[Any]], frames: dict[int, PatternFrame]
) -> None:
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
