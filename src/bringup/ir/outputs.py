"""Exchanging what a graph returns."""

from __future__ import annotations

from bringup.ir.graph import Graph
from bringup.ir.node import Value

__all__ = ["replace_output"]


def replace_output(graph: Graph, index: int, new: Value) -> None:
    """Let a graph return another value as result number `index`, whatever else reads the former.

    Args:
        graph: the graph; it is changed.
        index: the number of the result, from 0.
        new: a value of this graph.
    """
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
