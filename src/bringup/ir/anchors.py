"""The ports of nodes: where a value comes in, where it goes out, and what must run in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bringup.ir.effects import AliasAnalysis
from bringup.ir.node import values_in

if TYPE_CHECKING:
    from bringup.ir.graph import Graph
    from bringup.ir.node import Node, Value

__all__ = [
    "InAnchor",
    "OutAnchor",
    "control_inputs",
    "control_outputs",
    "in_anchors",
    "out_anchors",
]


@dataclass(frozen=True)
class InAnchor:
    """Input number `index` of a node, counted over the values that it reads."""

    node: Node
    index: int

    @property
    def value(self) -> Value:
        """What is read here."""
        return self.node.inputs[self.index]

    @property
    def peer(self) -> OutAnchor:
        """Where the value comes from."""
        return OutAnchor(self.value.node, self.value.index)


@dataclass(frozen=True)
class OutAnchor:
    """Output number `index` of a node."""

    node: Node
    index: int

    @property
    def value(self) -> Value:
        """What goes out here."""
        return self.node.outputs[self.index]

    @property
    def peers(self) -> tuple[InAnchor, ...]:
        """Where the value is read, in graph order."""
        return tuple(
            InAnchor(user, index)
            for user in self.value.users
            for index, value in enumerate(user.inputs)
            if value is self.value
        )


def in_anchors(node: Node) -> tuple[InAnchor, ...]:
    """All inputs of a node; a value that is read twice stands twice."""
    return tuple(InAnchor(node, index) for index in range(len(node.inputs)))


def out_anchors(node: Node) -> tuple[OutAnchor, ...]:
    """All outputs of a node."""
    return tuple(OutAnchor(node, index) for index in range(len(node.outputs)))


def control_inputs(node: Node) -> tuple[Node, ...]:
    """The nodes that must run before `node` for another reason than that it reads their values: a
    control edge, or because one of the two writes memory that the other uses, or its effects are
    unknown. In graph order.
    """
    order = _ordered_by_memory(node)
    found = [other for other in order if other.is_before(node) and node not in other.users]
    return _sorted(found, node.control_inputs)


def control_outputs(node: Node) -> tuple[Node, ...]:
    """The nodes that must run after `node` for another reason than that they read its values."""
    order = _ordered_by_memory(node)
    found = [other for other in order if node.is_before(other) and other not in node.users]
    return _sorted(found, node.control_users)


def _sorted(found: list[Node], edges: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(sorted({*found, *edges}, key=lambda node: node.order))


def _ordered_by_memory(node: Node) -> list[Node]:
    graph: Graph = node.graph
    aliases = AliasAnalysis(graph)
    if aliases.quiet:
        return []
    uses, writes = _memory_of(node, aliases)
    found = []
    for other in graph.nodes:
        if other is node or not other.inputs:
            continue
        other_uses, other_writes = _memory_of(other, aliases)
        opaque = node.operator.opaque or other.operator.opaque
        if opaque or uses & other_writes or writes & other_uses:
            found.append(other)
    return found


def _memory_of(node: Node, aliases: AliasAnalysis) -> tuple[set[Node], set[Node]]:
    """The storages that a node uses, and those it writes, each as its root value."""
    uses = {aliases.root(value) for value in (*node.inputs, *node.outputs)}
    writes = {
        aliases.root(value)
        for index in node.operator.mutates
        for value in values_in(node.arguments[index])
    }
    return uses, writes
