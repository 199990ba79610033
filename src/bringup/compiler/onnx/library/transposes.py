"""Transpositions that change nothing, and those of transpositions."""

from __future__ import annotations

from typing import ClassVar

from bringup import ir
from bringup.compiler.onnx.library.facts import attribute, known, nodes_behind, rank_of
from bringup.compiler.onnx.library.node_pass import NodePass


class MergeTransposes(NodePass):
    """A `Transpose` that keeps the order; one of another, which becomes one or none."""

    rules: ClassVar = {"Transpose": "transpose"}

    def transpose(self, node: ir.Node) -> ir.Value:
        (source,) = node.inputs
        outer = attribute(node, "perm")
        if _is_identity(outer, rank_of(source)):
            return source
        inner = known(
            nodes_behind(source, "onnx::Transpose"),
            "it changes the order, and transposes no transposition",
        )
        origin, before = inner.inputs[0], attribute(inner, "perm")
        if outer is None and before is None:
            return origin
        rank = len(outer if outer is not None else before)
        first, second = _order(before, rank), _order(outer, rank)
        merged = tuple(first[axis] for axis in second)
        if _is_identity(merged, rank):
            return origin
        return self.made(node, "Transpose", origin, perm=merged)


def _order(perm: tuple[int, ...] | None, rank: int) -> tuple[int, ...]:
    return tuple(range(rank))[::-1] if perm is None else perm


def _is_identity(perm: tuple[int, ...] | None, rank: int | None) -> bool:
    if perm is None:
        return rank is not None and rank < 2
    return perm == tuple(range(len(perm)))
