"""Computing once what depends on constants only."""

from __future__ import annotations

from bringup import ir
from bringup.passes.engine import native


def fold_constants(graph: ir.Graph) -> int:
    """Replace every operator whose inputs are constants with a payload by the constant it computes.

    Returns how many operators are gone. What shares memory with a result of the graph, or is
    written in it, is left alone: each call must return memory of its own. Raises what the graph's
    dialect raises, and `PassError` when that gives another number of results than there are
    outputs. A call of a graph that constants decide (an `If`) is inlined where the dialect does it.
    """
    dialect, folded = graph.dialect, 0
    while True:
        folded += native.fold_constants(graph.core, graph)
        inlined = 0 if dialect is None else dialect.inline_calls(graph)
        if not inlined:
            return folded
        folded += inlined
