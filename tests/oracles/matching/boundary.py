"""Whether what was matched can be taken out of the graph, and where its replacement would stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.oracles.matching.bindings import Bindings
from tests.oracles.matching.linking import reads_through, stated_edges
from tests.oracles.matching.placement import stand

from bringup import ir
from bringup.ir import Node, Value
from bringup.ir.node import values_in
from bringup.passes.patterns.bindings import resolve
from bringup.passes.patterns.match import MatchResult, PlacedMatch
from bringup.passes.rewrite.placement import PlacementRefusal

__all__ = ["RETURNS_INPUT", "accept"]

RETURNS_INPUT = (
    "the pattern returns its own input here: only what an operator computes can be replaced"
)

_Refuse = Callable[[Node, str], None]


def accept(bound: Bindings, aliases: ir.AliasAnalysis, refuse: _Refuse) -> PlacedMatch | None:
    """The candidate that the bindings make; None after `refuse` was told why there is none."""
    return _Boundary(bound, aliases, refuse).accept()


class _Boundary:
    def __init__(self, bound: Bindings, aliases: ir.AliasAnalysis, refuse: _Refuse) -> None:
        self._bound = bound
        self._aliases = aliases
        self._refuse = refuse
        self._matched = frozenset(bound.taken)
        self._in_order = _sorted(self._matched)
        found = (resolve(bound.root, value) for value in bound.root.pattern.graph.outputs)
        self._outputs = [value for value in found if value is not None]
        self._taken_in = _values_taken_in(bound)

    def accept(self) -> PlacedMatch | None:
        if not (
            self._is_computed_inside()
            and self._is_self_contained()
            and self._is_ordered_as_stated()
            and self._is_unwritten()
        ):
            return None
        place = stand(self._matched, self._taken_in, self._outputs, self._aliases)
        if isinstance(place, PlacementRefusal):
            self._refuse(place.node, place.reason)
            return None
        return PlacedMatch(MatchResult(self._bound.root), place.before, place.hoist)

    def _is_computed_inside(self) -> bool:
        """Whether every output is computed by a matched node: an input of the pattern that it
        returns, always or because an optional part is absent, is not.
        """
        for value in self._outputs:
            if value.node not in self._matched:
                self._refuse(value.node, RETURNS_INPUT)
                return False
        return True

    def _is_self_contained(self) -> bool:
        returned = frozenset(self._outputs)
        for target in self._in_order:
            if target.op_type == ir.CONSTANT:
                continue
            for index, value in enumerate(target.outputs):
                if value in returned:
                    continue
                outside = next((user for user in value.users if user not in self._matched), None)
                if outside is not None:
                    self._refuse(
                        target,
                        f"its output {index} is used outside by {outside.name!r}; make it an "
                        "output too",
                    )
                    return False
        for value in self._taken_in:
            if value.node in self._matched and value.node.op_type != ir.CONSTANT:
                self._refuse(value.node, "an input would be computed inside of what is replaced")
                return False
        return True

    def _is_ordered_as_stated(self) -> bool:
        """Whether an edge between matched nodes is one of the pattern, or says no more than what
        they read: otherwise what must run after the one would no longer run after what the other
        waits for.
        """
        stated = stated_edges(self._bound)
        for node in self._in_order:
            for source in node.control_inputs:
                if source not in self._matched or (source, node) in stated:
                    continue
                if not reads_through(node, source, self._matched):
                    self._refuse(
                        node,
                        f"it runs after {source.name!r} by a control edge that the pattern does "
                        "not have",
                    )
                    return False
        return True

    def _is_unwritten(self) -> bool:
        for value in self._outputs:
            writer = self._aliases.writer_of(value)
            if writer is not None:
                self._refuse(
                    value.node, f"its memory is written by {writer.name!r}, so it is not replaced"
                )
                return False
        return True


def _values_taken_in(bound: Bindings) -> list[Value]:
    """What the replacement may read: inputs of the pattern, and values in captured arguments."""
    taken_in: dict[Value, None] = {}
    for frame in bound.root.frames():
        for value in frame.pattern.graph.inputs:
            if value in frame.inputs:
                taken_in[frame.inputs[value]] = None
        for name in sorted(frame.names):
            taken_in.update(dict.fromkeys(values_in(frame.names[name])))
    return list(taken_in)


def _sorted(nodes: Iterable[Node]) -> list[Node]:
    return sorted(nodes, key=lambda node: node.order)
