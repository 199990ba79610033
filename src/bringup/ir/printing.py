"""Graphs and nodes as text, in the order they run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bringup.ir.node import Value

if TYPE_CHECKING:
    from bringup.ir.graph import Graph
    from bringup.ir.node import Node

__all__ = ["argument_text", "graph_text", "node_text", "to_dot"]


def argument_text(argument: object) -> str:
    """One argument: `%name` for a value, `[a, b]` for a list, `repr` for host values."""
    if isinstance(argument, Value):
        return f"%{argument.name}"
    if isinstance(argument, (tuple, list)):
        return f"[{', '.join(argument_text(item) for item in argument)}]"
    if isinstance(argument, dict):
        pairs = [f"{key!r}: {argument_text(item)}" for key, item in argument.items()]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(argument, slice):
        ends = (argument.start, argument.stop, argument.step)
        return f"slice({', '.join(map(argument_text, ends))})"
    return repr(argument)


def node_text(node: Node) -> str:
    """`%y: float32[2, 3] = aten::addmm(self=%bias, ...)`, with a control edge ` after %x`."""
    names = [parameter.name for parameter in node.operator.parameters]
    shown = []
    for index, argument in enumerate(node.arguments):
        prefix = f"{names[index]}=" if index < len(names) else ""
        shown.append(prefix + argument_text(argument))
    shown.extend(f"{name}={argument_text(item)}" for name, item in node.keywords.items())
    call = f"{node.op_type}({', '.join(shown)})"
    if node.control_inputs:
        call = f"{call} after {', '.join(f'%{source.name}' for source in node.control_inputs)}"
    if not node.outputs:
        return call
    return f"{', '.join(repr(value) for value in node.outputs)} = {call}"


def graph_text(graph: Graph) -> str:
    """The whole graph, one node a line, its subgraphs below it."""
    lines = [f"graph {graph.name}:"]
    lines.extend(f"  {node_text(node)}" for node in graph.nodes)
    for subgraph in graph.get_all_subgraphs():
        lines.extend(f"  {line}" for line in graph_text(subgraph).splitlines())
    return "\n".join(lines)


def to_dot(graph: Graph) -> str:
    """The graph in the DOT language of Graphviz: a box for every node, an edge for every value that
    it reads, labelled with shape and dtype; a dotted edge for every control edge; a dashed edge to
    every subgraph that a node calls.
    """
    lines = [f"digraph {_quoted(graph.name)} {{", "  node [shape=box];"]
    lines.extend(_dot_lines(graph, "n"))
    return "\n".join([*lines, "}", ""])


def _dot_lines(graph: Graph, prefix: str) -> Iterator[str]:
    names = {node: f"{prefix}_{number}" for number, node in enumerate(graph.nodes)}
    for node, name in names.items():
        yield f"  {name} [label={_quoted(f'{node.name}{chr(10)}{node.op_type}')}];"
        for value in node.inputs:
            desc = value.known_desc
            label = "" if desc is None else f" [label={_quoted(str(desc))}]"
            yield f"  {names[value.node]} -> {name}{label};"
        for source in node.control_inputs:
            yield f"  {names[source]} -> {name} [style=dotted];"
    for number, subgraph in enumerate(graph.get_all_subgraphs()):
        inner = f"{prefix}_{number}s"
        yield f"  subgraph cluster_{inner} {{"
        yield f"  label={_quoted(subgraph.name)};"
        yield from _dot_lines(subgraph, inner)
        yield "  }"
        caller = subgraph.get_parent_node()
        if caller is not None:
            yield f"  {names[caller]} -> {inner}_0 [style=dashed];"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
