"""Keeping a graph in an order in which it can run, and saying so when none exists."""

from __future__ import annotations

from collections.abc import Iterable

from bringup.errors import PassError
from bringup.ir.effects import AliasAnalysis
from bringup.ir.graph import Graph
from bringup.ir.node import Node

__all__ = ["hoist_plan", "topological_sort"]


def hoist_plan(
    needed: Iterable[Node], before: Node, blocked: frozenset[Node], aliases: AliasAnalysis
) -> list[Node] | str:
    """The nodes that must move so that all of `needed` ran before the node `before` runs.

    Only nodes after `before` are visited. Returns them in order, or the reason why it cannot be
    done: a cycle through `before` or a node of `blocked`, or a node that may not be moved.
    """
    late: dict[Node, None] = {}
    graph = before.graph
    agenda = list(needed)
    while agenda:
        node = agenda.pop()
        if not graph.owns(node) or node.is_before(before) or node in late:
            continue
        if node is before or node in blocked:
            return f"it would make a cycle: what it needs depends on {node.name!r}, which needs it"
        late[node] = None
        agenda.extend(node.control_inputs)
        agenda.extend(value.node for value in node.inputs)
    for node in late:
        if not node.pure:
            return (
                f"{node.name!r} ({node.op_type}) would have to run earlier, but it has side effects"
            )
        for value in node.inputs:
            writer = aliases.writer_between(value, before, node)
            if writer is not None:
                return (
                    f"{node.name!r} would have to run before {writer.name!r}, a writer of its input"
                )
    return sorted(late, key=lambda node: node.order)


def topological_sort(graph: Graph) -> None:
    """Move producers that come too late in front of their first reader.

    Raises `PassError` when the graph has a cycle, or a move would cross a write of what the node
    reads.
    """
    failure = graph.topological_sort()
    if failure is not None:
        node, reason = failure
        raise PassError(f"the graph cannot be ordered so that {node!r} has its inputs: {reason}")
