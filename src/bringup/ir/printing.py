"""Graphs and nodes as text, in the order they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.ir.node import Value

if TYPE_CHECKING:
    from bringup.ir.graph import Graph
    from bringup.ir.node import Node

__all__ = ["argument_text", "graph_text", "node_text"]


def argument_text(argument: object) -> str:
    """One argument: `%name` for a value, `[a, b]` for a list, `repr` for host values."""
    if isinstance(argument, Value):
        return f"%{argument.name}"
    if isinstance(argument, (tuple, list)):
        return f"[{', '.join(argument_text(item) for item in argument)}]"
    return repr(argument)


def node_text(node: Node) -> str:
    """`%y: float32[2, 3] = aten::addmm(self=%bias, ...)`."""
    names = [parameter.name for parameter in node.operator.parameters]
    shown = []
    for index, argument in enumerate(node.arguments):
        prefix = f"{names[index]}=" if index < len(names) else ""
        shown.append(prefix + argument_text(argument))
    shown.extend(f"{name}={argument_text(item)}" for name, item in node.keywords.items())
    call = f"{node.op_type}({', '.join(shown)})"
    if not node.outputs:
        return call
    return f"{', '.join(repr(value) for value in node.outputs)} = {call}"


def graph_text(graph: Graph) -> str:
    """The whole graph, one node a line."""
    lines = [f"graph {graph.name}:"]
    lines.extend(f"  {node_text(node)}" for node in graph.nodes)
    return "\n".join(lines)
