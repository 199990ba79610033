"""Putting a replacement where a match was."""

from __future__ import annotations

from collections.abc import Sequence

from bringup import ir
from bringup.errors import PassError, PassSkipException
from bringup.ir.node import map_argument, values_in

__all__ = ["create_replacement", "inherited_metadata", "replace"]


def create_replacement(graph: ir.Graph) -> ir.Graph:
    """The graph itself, once it is clear that it is one; `TypeError` otherwise."""
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
) -> tuple[ir.Node, ...]:
    """Copy `replacement` in front of `before`, let its outputs stand for `outputs`, take `nodes`
    out. What reads an input that is None gets None.

    New nodes, which are returned, take over the stack trace and module path of the nodes they
    replace. Raises `PassError` when the numbers of inputs or outputs do not fit, or an output
    differs in shape, dtype or device from what it replaces.
    """
    _check_counts(replacement, inputs, outputs)
    ir.topological_sort(replacement)
    if graph.dialect is not None and not replacement.is_bound:
        replacement.bind(graph.dialect)
    copies: dict[ir.Value, object] = dict(zip(replacement.inputs, inputs, strict=False))
    inherited = inherited_metadata(nodes)
    stands_for = dict(zip(replacement.outputs, outputs, strict=True))
    own: set[ir.Node] = set()
    made: list[ir.Node] = []
    calls: dict[ir.Node, ir.Node] = {}
    for node in replacement.nodes:
        if node.op_type in (ir.INPUT, ir.OUTPUT):
            continue
        if node.op_type == ir.CONSTANT:
            copies[node.output] = graph.add_constant(node.payload, name=node.name)
            continue
        _check_writes(node, own)
        own.add(node)
        made_here = node.outputs
        copy = graph.insert_call(
            node.operator,
            tuple(map_argument(argument, copies) for argument in node.arguments),
            {name: map_argument(item, copies) for name, item in node.keywords.items()},
            before=before,
            output_count=len(made_here),
            instead_of=stands_for.get(made_here[0]) if len(made_here) == 1 else None,
        )
        copy.meta.update(inherited)
        copy.meta.update(node.meta)
        aliases.record(copy)
        made.append(copy)
        calls[node] = copy
        copies.update(zip(made_here, copy.outputs, strict=False))
    _copy_control_edges(graph, calls, copies)
    results = [
        (
            old,
            _unwritten(_result(replacement, result, copies.get(result, result)), before, aliases),
        )
        for old, result in zip(outputs, replacement.outputs, strict=True)
    ]
    if graph.has_control_edges:
        graph.move_control_edges(nodes, made, results)
    for old, now in results:
        graph.exchange_uses(old, now)
        aliases.replaced(old, now)
    graph.erase_dead(*nodes)
    for result, old in stands_for.items():
        new = copies.get(result, result)
        if isinstance(new, ir.Value) and graph.owns(old._node) and graph.owns(new._node):
            graph.part_from(old, new)
    return tuple(node for node in made if graph.owns(node))


def _check_counts(
    replacement: ir.Graph, inputs: Sequence[ir.Value | None], outputs: Sequence[ir.Value]
) -> None:
    if len(replacement.inputs) > len(inputs):
        raise PassError(
            f"the replacement {replacement.name!r} has {len(replacement.inputs)} inputs, "
            f"what it replaces has {len(inputs)}"
        )
    if len(replacement.outputs) != len(outputs):
        raise PassError(
            f"the replacement {replacement.name!r} has {len(replacement.outputs)} outputs, "
            f"what it replaces has {len(outputs)}"
        )


def _result(replacement: ir.Graph, output: ir.Value, new: object) -> ir.Value:
    if isinstance(new, ir.Value):
        return new
    raise PassError(
        f"the replacement {replacement.name!r} returns its input {output.name!r}, which is absent "
        "in this match"
    )


def _unwritten(value: ir.Value, before: ir.Node, aliases: ir.AliasAnalysis) -> ir.Value:
    """The value, or a copy of it where something writes its memory later on: what it stands for was
    not written then. Raises `PassSkipException` where nobody can copy it.
    """
    graph = before.graph
    writer = aliases.writer_between(value, before, graph.output_node)
    if writer is None:
        return value
    copy_of = getattr(graph.dialect, "copy_of", None)
    if copy_of is None:
        raise PassSkipException(
            f"the replacement returns {value.name!r}, whose memory {writer.name!r} writes later on"
        )
    copy: ir.Value = copy_of(value, before)
    aliases.record(copy.node)
    return copy


def _copy_control_edges(
    graph: ir.Graph, calls: dict[ir.Node, ir.Node], copies: dict[ir.Value, object]
) -> None:
    """Those of a replacement; nothing waits for what is there from the start."""
    for original, copy in calls.items():
        for source in original.control_inputs:
            before = calls.get(source)
            if before is None:  # an input, which stands for a value here, or for nothing
                value = copies[source.output]
                before = value.node if isinstance(value, ir.Value) else None
            if before is not None and before.op_type not in (ir.INPUT, ir.CONSTANT):
                graph.add_control_edge(before, copy)


def _check_writes(node: ir.Node, made: set[ir.Node]) -> None:
    for index in node.operator.mutates:
        for value in values_in(node.arguments[index]):
            if value.node not in made:
                raise PassError(
                    f"the replacement writes {value.name!r}, which it did not make itself "
                    f"({node.op_type}): others read it too"
                )


def inherited_metadata(nodes: Sequence[ir.Node]) -> dict[str, object]:
    """What new nodes take over from those they replace: the user's lines and modules."""
    found: dict[str, object] = {}
    traces = dict.fromkeys([node._meta_entry("stack_trace") for node in nodes])
    traces.pop(None, None)
    if traces:
        found["stack_trace"] = "\n".join([str(trace) for trace in traces])
    for key in ("nn_module_stack", "module"):
        entry = nodes[-1]._meta_entry(key)
        if entry is not None:
            found[key] = entry
    found["replaces"] = tuple([node.name for node in nodes])
    return found
