"""Putting a replacement where a match was: the engine copies it and lets it take over."""

from __future__ import annotations

from collections.abc import Sequence

from bringup import ir
from bringup.passes.engine import native


def create_replacement(graph: ir.Graph) -> ir.Graph:
    """Return the graph itself, as GE's function of this name does; `TypeError` for anything else.

    Args:
        graph: what takes the place of a match.
    """
    if not isinstance(graph, ir.Graph):
        raise TypeError(f"a replacement is made from an ir.Graph, got {type(graph).__name__}")
    return graph


def replace(
    graph: ir.Graph,
    replacement: ir.Graph,
    *,
    inputs: Sequence[ir.Value | None],
    outputs: Sequence[ir.Value],
    nodes: Sequence[ir.Node],
    before: ir.Node,
    aliases: ir.AliasAnalysis,
    hoist: Sequence[ir.Node] = (),
) -> tuple[ir.Node, ...]:
    """Copy `replacement` in front of `before`, where `hoist` is moved first, let its outputs stand
    for `outputs`, take `nodes` out. What reads an input that is None gets None.

    New nodes, which are returned, take over the stack trace and module path of the nodes they
    replace. Raises `PassError` when the numbers of inputs or outputs do not fit, or an output
    differs in shape, dtype or device from what it replaces.
    """
    bind_replacement(graph, replacement)
    made: tuple[ir.Node, ...] = native.replace(
        graph.core, replacement.core, inputs, outputs, nodes, before, hoist, aliases.core
    )
    return made


def bind_replacement(graph: ir.Graph, replacement: ir.Graph) -> None:
    """Put a replacement in order, its operators those of the graph it goes to."""
    ir.topological_sort(replacement)
    if graph.dialect is not None and not replacement.is_bound:
        replacement.bind(graph.dialect)


def inherited_metadata(nodes: Sequence[ir.Node]) -> dict[str, object]:
    """Return what new nodes take over from those they replace: the user's lines and modules."""
    found: dict[str, object] = native.inherited_metadata(nodes[0].graph.core, nodes)
    return found
