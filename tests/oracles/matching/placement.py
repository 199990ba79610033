"""Where a replacement may stand: the oracle of native/engine/analysis/placement.cpp."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from bringup import ir
from bringup.passes.rewrite.placement import Placement, PlacementRefusal

__all__ = ["stand"]


def stand(
    matched: frozenset[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: Collection[ir.Value],
    aliases: ir.AliasAnalysis,
) -> Placement | PlacementRefusal:
    """For nodes that can be replaced: behind all they read, in front of all that read them, with no
    write of what they read in between. Control edges count as reads do.
    """
    in_order = sorted(matched, key=lambda node: node.order)
    readers = {user for value in outputs for user in value.users}
    readers.update(user for node in in_order for user in node.control_users)
    readers -= matched
    last = in_order[-1]
    first_reader = min(readers, key=lambda node: node.order, default=None)
    if first_reader is None or last.is_before(first_reader):
        assert last.next is not None, "only the output node is the last, and it is no operator"
        placement = Placement(last.next, ())
    else:
        needed = [value.node for value in inputs]
        needed.extend(
            source for node in in_order for source in node.control_inputs if source not in matched
        )
        plan = _hoist_plan(needed, first_reader, matched, aliases)
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


def _hoist_plan(
    needed: Iterable[ir.Node],
    before: ir.Node,
    blocked: frozenset[ir.Node],
    aliases: ir.AliasAnalysis,
) -> list[ir.Node] | str:
    """The nodes that must move so that all of `needed` ran before the node `before` runs.

    Only nodes after `before` are visited. Returns them in order, or the reason why it cannot be
    done: a cycle through `before` or a node of `blocked`, or a node that may not be moved.
    """
    late: dict[ir.Node, None] = {}
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
