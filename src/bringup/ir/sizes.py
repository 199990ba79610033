"""Symbolic sizes as arguments: the nodes that compute them in a graph."""

from __future__ import annotations

from typing import Any

from bringup.errors import PassError
from bringup.ir._engine import use_symbolic_type
from bringup.ir.node import Node, Value
from bringup.ir.protocols import EditableGraph
from bringup.ir.symbolic import Dim, SymbolicDim, same_size

_PLAIN = frozenset({Value, int, float, bool, str, complex, dict, type(None)})
"""Types of arguments that are no size, and hold none that a node could compute."""
_SIZE = "size"

use_symbolic_type(SymbolicDim, str)


def computed_sizes(
    graph: EditableGraph, arguments: tuple[Any, ...], before: Node
) -> tuple[Any, ...]:
    """Return a node's arguments in front of `before`, each symbolic size as a value that is this
    size.

    In a graph that is being built an unknown size stays. Raises `PassError` where a pass edits one.
    """
    for item in arguments:
        if _may_hold_size(item):
            break
    else:
        return arguments
    sizes = _Sizes(graph, before)
    return tuple([sizes.exchanged(item) for item in arguments])


def _may_hold_size(item: object) -> bool:
    kind = type(item)
    if kind is tuple or kind is list:
        return any(map(_may_hold_size, item))  # type: ignore[call-overload]
    return kind not in _PLAIN


class _Sizes:
    def __init__(self, graph: EditableGraph, before: Node) -> None:
        self._graph = graph
        self._before = before
        self._dialect = graph.dialect
        self._operators = {} if graph.dialect is None else graph.dialect.size_operators

    def exchanged(self, item: Any) -> Any:
        if isinstance(item, (tuple, list)):
            return tuple([self.exchanged(inner) for inner in item])
        size = item
        if type(item) in _PLAIN or not isinstance(item, SymbolicDim):
            dialect = None if type(item) in _PLAIN else self._dialect
            size = None if dialect is None else dialect.as_size(item)
        if not isinstance(size, SymbolicDim):
            return item if size is None else size
        return self._value_of(size)

    def _value_of(self, size: SymbolicDim) -> object:
        found = self._known(size) if self._operators else None
        if found is None and self._operators:
            found = self._computed(size)
        if found is not None:
            return found
        stays = self._dialect is not None and self._dialect.has_symbolic_arguments
        if self._graph.is_in_transaction and not stays:
            raise PassError(
                f"nothing in front of {self._before.name!r} has the size {size}, which an argument "
                "of a new node is"
            )
        return size

    def _computed(self, size: SymbolicDim) -> Value | None:
        """Return the value that its parts make; None where a part is not to be had."""
        parts: dict[SymbolicDim, Value] = {}

        def part(dim: SymbolicDim) -> None:
            found = self._known(dim)
            if found is not None:
                parts[dim] = found
            else:
                missing.append(dim)

        missing: list[SymbolicDim] = []
        size.build(lambda *_: None, part)
        if missing:
            return None
        made = size.build(self._combined, lambda dim: parts[dim])
        return made if isinstance(made, Value) else None

    def _combined(self, sign: str, left: object, right: object) -> Value:
        return self._made(self._operators[sign], left, right)

    def _made(self, op_type: str, *arguments: object) -> Value:
        return self._graph.insert(op_type, arguments, before=self._before).output

    def _known(self, size: SymbolicDim) -> Value | None:
        """Return a value that is this size, or is computed here from a tensor of this size."""
        graph, before = self._graph, self._before
        inputs = graph.inputs
        found = next((value for value in inputs if _is(value.size, size)), None)
        if found is not None:
            return found
        for node in graph.find(self._operators[_SIZE]):
            if _is(node.output.size, size) and node.is_before(before):
                return node.output
        for value in inputs:
            if (dim := _dim_of(value, size)) is not None:
                return self._made(self._operators[_SIZE], value, dim)
        for node in graph.nodes:
            if not node.is_before(before):
                return None
            for value in node.outputs:
                if _is(value.size, size):
                    return value
                if (dim := _dim_of(value, size)) is not None:
                    return self._made(self._operators[_SIZE], value, dim)
        return None


def _is(given: Dim | None, size: SymbolicDim) -> bool:
    return given is not None and same_size(given, size)


def _dim_of(value: Value, size: SymbolicDim) -> int | None:
    desc = value.known_desc
    dims = () if desc is None else desc.shape.dims
    return next((index for index, dim in enumerate(dims) if same_size(dim, size)), None)
