"""Whether nodes can be taken out of a graph, and where what replaces them may stand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bringup import ir

__all__ = ["Placement", "place"]


@dataclass(frozen=True)
class Placement:
    """In front of which node a replacement stands, and which nodes must move in front of it."""

    before: ir.Node
    hoist: tuple[ir.Node, ...]


def place(
    nodes: Iterable[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    storages: ir.Storages,
) -> Placement | str:
    """Where a replacement of `nodes` may stand, or the reason why there is no such place.

    The nodes must be one part of the graph: what they compute is used by themselves or is among
    `outputs`, they only compute, and no input depends on an output.
    """
    matched = frozenset(nodes)
    reason = _why_not_replaceable(matched, inputs, outputs, storages)
    if reason is not None:
        return reason
    readers = [user for value in outputs for user in value.users if user not in matched]
    last = max(matched, key=lambda node: node.order)
    first_reader = min(readers, key=lambda node: node.order, default=None)
    if first_reader is None or last.is_before(first_reader):
        assert last.next is not None, "only the output node is the last, and it was refused"
        return Placement(last.next, ())
    plan = ir.hoist_plan(inputs, first_reader, matched, storages)
    if isinstance(plan, str):
        return plan
    return Placement(first_reader, tuple(plan))


def _why_not_replaceable(
    matched: frozenset[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    storages: ir.Storages,
) -> str | None:
    returned = set(outputs)
    for node in matched:
        if node.op_type in (ir.INPUT, ir.OUTPUT):
            return f"{node.name!r} is an input or the result of the graph, not an operator"
        if not node.pure:
            return (
                f"{node.name!r} ({node.op_type}) writes memory or is random, so it is never "
                "replaced"
            )
        for value in node.outputs:
            if storages.writer_of(value) is not None:
                return f"the memory of {value.name!r} is written, so it is not replaced"
            outside = next((user for user in value.users if user not in matched), None)
            if outside is not None and value not in returned:
                return (
                    f"{value.name!r} is used outside by {outside.name!r}: it must be an output too"
                )
    for value in inputs:
        if value.node in matched:
            return f"the input {value.name!r} is computed inside"
    return None
