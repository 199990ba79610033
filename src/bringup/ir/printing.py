"""Graphs as text, in the order they run."""

from __future__ import annotations

from collections.abc import Iterator

from bringup.ir.node import node_text
from bringup.ir.subgraphs import GraphTree


def graph_text(graph: GraphTree) -> str:
    """Return the whole graph, one node a line, its subgraphs below it."""
    lines = [f"graph {graph.name}:"]
    lines.extend(f"  {node_text(node)}" for node in graph.nodes)
    for subgraph in graph.get_all_subgraphs():
        lines.extend(f"  {line}" for line in graph_text(subgraph).splitlines())
    return "\n".join(lines)


def to_dot(graph: GraphTree) -> str:
    """Return the graph in the DOT language of Graphviz: a box for every node, an edge for every
    value that it reads, labelled with shape and dtype; a dotted edge for every control edge; a
    dashed edge to every subgraph that a node calls.
    """
    lines = [f"digraph {_quoted(graph.name)} {{", "  node [shape=box];"]
    lines.extend(_dot_lines(graph, "n"))
    return "\n".join([*lines, "}", ""])


def _dot_lines(graph: GraphTree, prefix: str) -> Iterator[str]:
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
