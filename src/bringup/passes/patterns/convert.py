"""What a hook returned, as a graph."""

from __future__ import annotations

from bringup import ir


def as_graph(replacement: object, where: str) -> ir.Graph:
    if isinstance(replacement, ir.Graph):
        return replacement
    holders = replacement if isinstance(replacement, (tuple, list)) else (replacement,)
    if holders and all(isinstance(holder, ir.TensorHolder) for holder in holders):
        builder: ir.GraphBuilder = holders[0].builder
        return builder.build_and_reset(holders)
    raise TypeError(
        f"{where} must return an ir.Graph or the TensorHolder(s) of its outputs, "
        f"got {replacement!r}"
    )
