"""What the passes of the library may take for granted of values, sizes and constants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from bringup import ir, passes
from bringup.compiler.onnx.attributes import AttributeReference
from bringup.compiler.onnx.constants import as_constant
from bringup.compiler.onnx.opsets import ModelOperators
from bringup.compiler.onnx.types import is_unknown
from bringup.errors import ModelError

MOST_INTEGER = 2**63 - 1
Item = TypeVar("Item")


def require(condition: object, reason: str) -> None:
    """Leave a node alone for this reason unless the condition holds: `PassSkipException`."""
    if not condition:
        raise passes.PassSkipException(reason)


def known(found: Item | None, reason: str) -> Item:
    """Return what was found; leaves the node alone for this reason where that is None."""
    if found is None:
        raise passes.PassSkipException(reason)
    return found


def opset(graph: ir.Graph) -> int:
    """Return the version of ONNX's own operators that the graph imports."""
    dialect: object = graph.dialect
    assert isinstance(dialect, ModelOperators), "the passes run on graphs of ONNX alone"
    return dialect.version_of("")


# Values


def optional(node: ir.Node, name: str) -> ir.Value | None:
    """Return the input of this name; None where it is absent, or this version does not have it."""
    found = node.argument(name) if node.has_attr(name) else None
    return found if isinstance(found, ir.Value) else None


def attribute(node: ir.Node, name: str) -> Any:
    """Return the attribute; None without a value. `PassSkipException` for a function's argument."""
    found = node.argument(name) if node.has_attr(name) else None
    require(not isinstance(found, AttributeReference), f"{name!r} is an argument of the function")
    return found


def is_result(value: ir.Value) -> bool:
    return any(value is result for result in value.graph.outputs)


def nodes_behind(value: ir.Value, op_type: str) -> ir.Node | None:
    """Return the node that computes a value, if it is of this type."""
    return value.node if value.node.op_type == op_type else None


# Shapes


def dims(value: ir.Value) -> tuple[ir.Dim, ...] | None:
    """Return the sizes of a tensor; None where not even their number is known."""
    desc = value.desc
    return None if desc is None else tuple(desc.shape)


def dtype_of(value: ir.Value) -> str | None:
    """Return the dtype of a tensor of known rank; None of anything else."""
    desc = value.desc
    return None if desc is None else desc.dtype


def rank_of(value: ir.Value) -> int | None:
    """Return how many dimensions a tensor has; None where that is not known."""
    found = dims(value)
    return None if found is None else len(found)


def same_dim(one: ir.Dim, other: ir.Dim) -> bool:
    """Return whether two sizes are equal for certain: unknown ones never, whatever their names."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    return not is_unknown(one) and not is_unknown(other) and ir.same_size(one, other)


def same_dims(one: Iterable[ir.Dim] | None, other: Iterable[ir.Dim] | None) -> bool:
    if one is None or other is None:
        return False
    left, right = tuple(one), tuple(other)
    return len(left) == len(right) and all(map(same_dim, left, right))


def keeps_shape(value: ir.Value, shape: tuple[int, ...]) -> bool:
    """Return whether broadcasting with an operand of this shape keeps the shape of `value`."""
    sizes = dims(value)
    if sizes is None:
        return shape == ()
    if len(shape) > len(sizes):
        return False
    behind = sizes[len(sizes) - len(shape) :]
    return all(size in (1, known) for size, known in zip(shape, behind, strict=True))


def axis_in(axis: int, rank: int | None) -> int:
    """Return an axis counted from the front; `PassSkipException` if that takes an unknown rank."""
    if axis >= 0:
        return axis
    return axis + known(rank, "an axis is counted from the back, and the rank is unknown")


# Constants


def array(value: ir.Value | None) -> Any:
    """Return the elements of a constant as an array; None of others or unreadable files."""
    if value is None or value.node.op_type != ir.CONSTANT or value.node.payload is None:
        return None
    try:
        return as_constant(value.node.payload).numpy()
    except ModelError:
        return None


def integers(value: object) -> tuple[int, ...] | None:
    """Whole numbers that are an attribute or a constant: axes, sizes; None where unknown."""
    if isinstance(value, tuple):
        known = tuple(item for item in value if isinstance(item, int))
        return known if len(known) == len(value) else None
    found = array(value) if isinstance(value, ir.Value) else None
    if found is None or found.dtype.kind not in "iu" or found.ndim > 1:
        return None
    return tuple(int(item) for item in found.reshape(-1))
