"""Exchanging what a graph returns."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.ir.node import Value, map_argument
from bringup.ir.protocols import EditableGraph


def replace_output(graph: EditableGraph, index: int, new: Value) -> None:
    """Let `graph` return its value `new` as result number `index`; others read on."""
    places = iter(range(len(graph.outputs)))

    def exchanged(argument: object) -> object:
        if isinstance(argument, Value):
            return new if next(places) == index else argument
        if isinstance(argument, (tuple, list)):
            return tuple([exchanged(item) for item in argument])
        if isinstance(argument, dict):
            return {key: exchanged(item) for key, item in argument.items()}
        return argument

    graph.set_outputs(*[exchanged(item) for item in graph.output_node.arguments])


def on_copies(graph: EditableGraph, results: Sequence[Value], copy_operator: str) -> list[Value]:
    """Return what `results` are on copies at the graph's end; views of one value share its copy."""
    end = graph.output_node
    paths: dict[Value, list[list[Value]]] = {}
    for path in (_path(graph, result) for result in dict.fromkeys(results)):
        paths.setdefault(path[0], []).append(path)
    copies: dict[Value, Value] = {}
    for together in paths.values():
        shared = sum(len(set(step)) == 1 for step in zip(*together, strict=False))
        copied = together[0][shared - 1]
        copies[copied] = graph.insert(copy_operator, (copied,), before=end).output
        for view in (view for path in together for view in path[shared:]):
            if view in copies:
                continue
            node, count = view.node, len(view.node.outputs)
            arguments = tuple(map_argument(item, copies) for item in node.arguments)
            again = graph.insert_call(node.operator, arguments, before=end, output_count=count)
            copies.update(zip(node.outputs, again.outputs, strict=True))
    return [copies[result] for result in results]


def _path(graph: EditableGraph, value: Value) -> list[Value]:
    """Return what a value is a view of, from where the memory begins, and the value itself."""
    path = [value]
    while (base := _viewed(graph, path[-1])) is not None:
        path.append(base)
    return path[::-1]


def _viewed(graph: EditableGraph, value: Value) -> Value | None:
    """Return the value that another is a view of whatever its strides are; None if it is none."""
    operator, node = value.node.operator, value.node
    if len(operator.aliases) != 1 or operator.mutates or operator.opaque:
        return None
    if graph.dialect is None or graph.dialect.reads_strides(node):
        return None
    (base,) = (node.arguments[index] for index in operator.aliases)
    return base if isinstance(base, Value) else None
