"""Whether nodes can leave a graph, and where their replacement may stand: the engine says."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bringup import ir
from bringup.passes.engine import native


@dataclass(frozen=True)
class Placement:
    """In front of which node a replacement stands, and which nodes must move in front of it."""

    before: ir.Node
    hoist: tuple[ir.Node, ...]


@dataclass(frozen=True)
class PlacementRefusal:
    """Why there is no such place, and the node that is in the way."""

    node: ir.Node
    reason: str

    def __str__(self) -> str:
        return f"{self.node.name!r}: {self.reason}"


def place(
    nodes: Collection[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    aliases: ir.AliasAnalysis,
) -> Placement | PlacementRefusal:
    """Return where a replacement of `nodes` may stand, or why there is no such place.

    They must be one part of the graph: what they compute is used by themselves or is among
    `outputs`, they only compute, and none of `inputs` depends on an output.
    """
    node, found = native.place(aliases.core, nodes, inputs, outputs)
    return PlacementRefusal(node, found) if isinstance(found, str) else Placement(node, found)
