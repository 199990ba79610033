"""Shape inference over a whole graph: for graphs that were built without shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bringup.errors import PassError, first_line
from bringup.ir.dialect import Dialect
from bringup.ir.graph import Graph
from bringup.ir.node import CONSTANT, Node, Value


def needs_shapes(graph: Graph) -> bool:
    """Return whether shapes are missing, and all inputs are described."""
    if not graph.shapes_pending or not graph.is_bound:
        return False
    for value in graph.inputs:
        desc = value.known_desc
        if value.meta is None and (desc is None or not desc.shape.is_static):
            return False
    return True


def infer_shapes(graph: Graph, inputs: Mapping[Value, object] | None = None) -> None:
    """Give every value of `graph` its meta, from those of the inputs.

    Args:
        graph: changed in place; undone with an open transaction.
        inputs: metas by input; the others keep theirs, or have that of their declared shape.

    Raises `PassError` that names the node when an operator refuses its inputs, or when the graph
    has no dialect to ask. Nodes behind an input without a description are left as they are.
    """
    dialect = graph.dialect
    if dialect is None:
        raise PassError(f"graph {graph.name!r} has no dialect to infer its shapes: bind it to one")
    for value in graph.inputs:
        meta = (inputs or {}).get(value, value.meta)
        if meta is None and value.known_desc is not None:
            meta = dialect.meta_of(value.known_desc)
        graph.set_meta(value, meta)
    for node in graph.core.unsettled(dialect.is_settled):
        if node.op_type == CONSTANT and node.payload is not None:
            graph.set_meta(node.output, dialect.constant_meta(node.payload))
        elif node.operator.parameters and all(value.meta is not None for value in node.inputs):
            _infer_node(graph, dialect, node)
    graph.shapes_pending = False
    dialect.pass_on_shapes(graph)


def _infer_node(graph: Graph, dialect: Dialect, node: Node) -> None:
    try:
        metas = dialect.infer(node)
    except Exception as error:
        reason = first_line(error)
        raise PassError(f"the shapes of {node!r} cannot be inferred: {reason}") from error
    if len(metas) != len(node.outputs):
        raise PassError(
            f"{node!r} has {len(node.outputs)} outputs, and its operator computes {len(metas)}"
        )
    for value, meta in zip(node.outputs, metas, strict=True):
        graph.set_meta(value, meta)


@contextmanager
def shapes_withheld(graph: Graph, wanted: bool) -> Iterator[None]:
    """In this block, asking for a shape that is still to be inferred raises, if `wanted`."""
    former = graph.withholds_shapes
    graph.withholds_shapes = wanted and needs_shapes(graph)
    try:
        yield
    finally:
        graph.withholds_shapes = former
