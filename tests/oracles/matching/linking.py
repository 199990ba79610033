"""Control edges of a pattern: what they ask of the nodes that are found, and where they lead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.oracles.matching.bindings import Bindings
from tests.oracles.matching.predicates import Refusal

from bringup import ir
from bringup.ir import Node
from bringup.passes.patterns.bindings import PatternFrame

__all__ = [
    "Link",
    "link_to_known",
    "missing_edge",
    "reads_through",
    "stated_edges",
    "types_text",
]


@dataclass(frozen=True)
class Link:
    """A control edge between an unbound node and one that is bound, to `known` or from it."""

    known: Node
    leaves: bool

    def targets(self, op_type: str) -> list[Node]:
        """The nodes of a type at the other end of such edges, in graph order."""
        return [node for node in self.others if node.op_type == op_type]

    @property
    def others(self) -> list[Node]:
        """The nodes at the other end of such edges, in graph order."""
        linked = self.known.control_users if self.leaves else self.known.control_inputs
        return sorted(linked, key=lambda node: node.order)

    def refusal(self, op_type: str) -> Refusal:
        """Why no node fits."""
        way = "leads from" if self.leaves else "comes to"
        reason = f"no control edge {way} it as the pattern has one"
        return Refusal(reason, op_type, types_text(self.others))


def missing_edge(frame: PatternFrame, wanted: Node, found: Node) -> tuple[Node, Refusal] | None:
    """The first edge that is not there although both of its ends are known, when `found` stands for
    `wanted` (or computes it, if that is an input): the node that should wait, and what for.
    """
    for source, target in frame.pattern.control_edges:
        if wanted not in (source, target):
            continue
        first = found if source is wanted else _stands_for(frame, source)
        last = found if target is wanted else frame.nodes.get(target)
        if first is None or last is None or first in last.control_inputs:
            continue
        got = ", ".join(repr(node.name) for node in last.control_inputs) or "none"
        return last, Refusal("a control edge is missing", f"from {first.name!r}", f"from {got}")
    return None


def link_to_known(frame: PatternFrame, wanted: Node) -> Link | None:
    """The first control edge between an unbound node and something bound."""
    for source, target in frame.pattern.control_edges:
        known = _stands_for(frame, source) if target is wanted else None
        if known is not None:
            return Link(known, leaves=True)
        known = frame.nodes.get(target) if source is wanted else None
        if known is not None:
            return Link(known, leaves=False)
    return None


def stated_edges(bound: Bindings) -> set[tuple[Node, Node]]:
    """The edges that the pattern asks for, between nodes that are found."""
    return {
        (first, last)
        for frame in bound.root.frames()
        for source, target in frame.pattern.control_edges
        if (first := _stands_for(frame, source)) and (last := frame.nodes.get(target))
    }


def reads_through(node: Node, source: Node, inside: frozenset[Node]) -> bool:
    """Whether `node` reads, through nodes of `inside` alone, what `source` computes."""
    agenda, seen = [node], set[Node]()
    while agenda:
        at = agenda.pop()
        if at is source:
            return True
        if at in inside and at not in seen:
            seen.add(at)
            agenda.extend(value.node for value in at.inputs)
    return False


def types_text(nodes: Iterable[Node]) -> str:
    """The types of some nodes."""
    return ", ".join(sorted({node.op_type for node in nodes})) or "none"


def _stands_for(frame: PatternFrame, node: Node) -> Node | None:
    """What a node of the pattern stands for; of an input, what computes it."""
    if node.op_type != ir.INPUT:
        return frame.nodes.get(node)
    value = frame.inputs.get(node.output)
    return None if value is None else value.node
