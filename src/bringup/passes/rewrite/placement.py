"""Whether nodes can be taken out of a graph, and where what replaces them may stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bringup import ir
from bringup.ir.order import hoist_plan

__all__ = ["Part", "Placement", "PlacementRefusal", "place", "stand"]


@dataclass(frozen=True)
class Part:
    """The nodes of a graph that a replacement would take the place of."""

    nodes: frozenset[ir.Node]
    inputs: Sequence[ir.Value]  # what they read and the replacement will
    outputs: Sequence[ir.Value]  # what is read of theirs, and will be computed by it


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


def place(part: Part, aliases: ir.AliasAnalysis) -> Placement | PlacementRefusal:
    """Where a replacement of `part` may stand, or the reason why there is no such place.

    The nodes must be one part of the graph: what they compute is used by themselves or is among
    the outputs, they only compute, and no input depends on an output.
    """
    return _why_not_replaceable(part, aliases) or stand(part, aliases)


def stand(part: Part, aliases: ir.AliasAnalysis) -> Placement | PlacementRefusal:
    """The same for nodes that are known to be replaceable: behind all they read, in front of all
    that read them, with no write of what they read in between. Control edges count as reads do.
    """
    matched = part.nodes
    in_order = sorted(matched, key=lambda node: node.order)
    readers = {user for value in part.outputs for user in value.users}
    readers.update(user for node in in_order for user in node.control_users)
    readers -= matched
    last = in_order[-1]
    first_reader = min(readers, key=lambda node: node.order, default=None)
    if first_reader is None or last.is_before(first_reader):
        assert last.next is not None, "only the output node is the last, and it is no operator"
        placement = Placement(last.next, ())
    else:
        needed = [value.node for value in part.inputs]
        needed.extend(
            source for node in in_order for source in node.control_inputs if source not in matched
        )
        plan = hoist_plan(needed, first_reader, matched, aliases)
        if isinstance(plan, str):
            return PlacementRefusal(first_reader, plan)
        placement = Placement(first_reader, tuple(plan))
    return _why_not_at(placement.before, matched, aliases) or placement


def _why_not_at(
    before: ir.Node, matched: frozenset[ir.Node], aliases: ir.AliasAnalysis
) -> PlacementRefusal | None:
    """Whether what the nodes read is written between them and the replacement."""
    if aliases.quiet:
        return None
    for node in sorted(matched, key=lambda node: node.order):
        first, last = (node, before) if node.is_before(before) else (before, node)
        for value in node.inputs:
            writer = aliases.writer_between(value, first, last)
            if writer is not None:
                return PlacementRefusal(
                    node, f"{writer.name!r} writes what it reads between it and the replacement"
                )
    return None


def _why_not_replaceable(part: Part, aliases: ir.AliasAnalysis) -> PlacementRefusal | None:
    matched = part.nodes
    returned = set(part.outputs)
    for node in sorted(matched, key=lambda node: node.order):
        if node.op_type in (ir.INPUT, ir.OUTPUT):
            words = f"{node.name!r} is an input or the result of the graph, not an operator"
            return PlacementRefusal(node, words)
        if not node.pure:
            words = f"{node.name!r} ({node.op_type}) writes memory or is random"
            return PlacementRefusal(node, f"{words}, so it is never replaced")
        for value in node.outputs:
            if aliases.writer_of(value) is not None:
                return PlacementRefusal(
                    node, f"the memory of {value.name!r} is written, so it stays"
                )
            outside = next((user for user in value.users if user not in matched), None)
            if outside is not None and value not in returned:
                words = f"{value.name!r} is used outside by {outside.name!r}"
                return PlacementRefusal(node, f"{words}: it must be an output too")
    inside = next((value for value in part.inputs if value.node in matched), None)
    if inside is not None:
        return PlacementRefusal(inside.node, f"the input {inside.name!r} is computed inside")
    return None
