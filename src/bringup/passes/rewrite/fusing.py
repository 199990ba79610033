"""Asking whether nodes may become one, and saying that they have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bringup import ir
from bringup.errors import PassError
from bringup.passes.definition.context import PassContext
from bringup.passes.rewrite.placement import PlacementRefusal, place
from bringup.passes.rewrite.rewriter import inherited_metadata


@dataclass(frozen=True)
class FuseCheckResult:
    """Whether nodes may be fused.

    Attributes:
        ok: whether they may.
        reason: why not, or "".
    """

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


def can_fuse(nodes: Iterable[ir.Node]) -> FuseCheckResult:
    """Return whether these nodes may be replaced by one: they are of one graph and one device, no
    attribute that was set (`node.set_attr("_user_stream_label", ...)`, a scope, a number of cores)
    differs between two of them, they only compute, and what stands between them depends on none of
    them.
    """
    listed = list(nodes)
    for item in listed:
        _check_node(item)
    reason = _disagreement(listed) if listed else "there are no nodes"
    if reason is None:
        reason = _why_not_one(listed)
    return FuseCheckResult(reason is None, reason or "")


def _check_node(node: object) -> None:
    if not isinstance(node, ir.Node):
        raise TypeError(f"expected an ir.Node, got {node!r}")


def _disagreement(nodes: list[ir.Node]) -> str | None:
    graph = nodes[0].graph
    for node in nodes:
        if node.graph is not graph:
            return (
                f"{nodes[0].name!r} is a node of graph {graph.name!r}, {node.name!r} of "
                f"{node.graph.name!r}"
            )
    attributes: list[Any] = [node.meta.get("attributes") or {} for node in nodes]
    for label in dict.fromkeys(label for each in attributes for label in each):
        pairs = zip(attributes, nodes, strict=True)
        named = {str(each[label]): node.name for each, node in pairs if label in each}
        if len(named) > 1:
            shown = ", ".join(f"{value!r} ({name})" for value, name in sorted(named.items()))
            return f"the nodes have different {label}s: {shown}"
    devices = {
        value.known_desc.device: node.name
        for node in nodes
        for value in node.outputs
        if value.known_desc is not None
    }
    if len(devices) > 1:
        shown = ", ".join(f"{device} ({name})" for device, name in sorted(devices.items()))
        return f"the nodes are on different devices: {shown}"
    return None


def _why_not_one(nodes: list[ir.Node]) -> str | None:
    matched = frozenset(nodes)
    inputs = [value for node in nodes for value in node.inputs if value.node not in matched]
    outputs = [value for node in nodes for value in node.outputs]
    found = place(nodes, inputs, outputs, ir.AliasAnalysis(nodes[0].graph))
    return str(found) if isinstance(found, PlacementRefusal) else None


def report_fuse(before: Iterable[ir.Node], after: Iterable[ir.Node], context: PassContext) -> None:
    """Say that `after` stands where `before` stood: stamps the pass's name, the names of the old
    nodes, their stack traces and modules on the new ones, and counts a match.

    Call it while the old nodes are still in the graph.

    Args:
        before: the nodes that go.
        after: those that replace them.
        context: of the pass that runs.

    Raises:
        PassError: the context has no pass name.
    """
    name = context.get_pass_name()
    if not name:
        raise PassError("a fusion cannot be reported without the name of the pass")
    old, new = list(before), list(after)
    inherited = inherited_metadata(old) if old else {}
    attributes: Any = inherited.pop("attributes", {})
    for node in new:
        for key, item in inherited.items():
            node.meta.setdefault(key, item)
        for label, item in attributes.items():
            if not node.has_attr(label):
                node.set_attr(label, item)
        node.meta["rule"] = name
    context.count_fusion([node.name for node in old], [node.name for node in new])


def check_node_support(node: ir.Node) -> tuple[bool, str]:
    """Return whether the node can be executed on the device of its inputs, and if not, why.

    Raises `TypeError` for anything but a node, `PassError` when its graph has no dialect to ask.
    """
    _check_node(node)
    dialect = node.graph.dialect
    if dialect is None:
        raise PassError(
            f"graph {node.graph.name!r} has no dialect, so it is unknown whether {node.name!r} "
            f"({node.op_type}) is supported: bind the graph to one"
        )
    return dialect.supports(node)
