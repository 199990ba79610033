"""Keeping a graph in an order in which it can run, and saying so when none exists."""

from __future__ import annotations

from bringup.errors import PassError
from bringup.ir.graph import Graph


def topological_sort(graph: Graph) -> None:
    """Move producers of `graph` that come too late in front of their readers. Raises `PassError`
    for a cycle, or a move across a write of what the node reads.
    """
    failure = graph.topological_sort()
    if failure is not None:
        node, reason = failure
        raise PassError(f"the graph cannot be ordered so that {node!r} has its inputs: {reason}")
