"""Chains of `Min`, `Max`, `Relu` and `Clip`."""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

import numpy as np

from bringup import ir
from bringup.compiler.onnx.library.facts import (
    array,
    dtype_of,
    keeps_shape,
    opset,
    optional,
    require,
)
from bringup.compiler.onnx.library.node_pass import NodePass, constant_before

_INPUTS_SINCE = 12
"""`Clip` has its limits as inputs since version 11, and takes integers since this one."""
Limits = tuple["float | int | None", "float | int | None"]


class MergeClips(NodePass):
    """`Min` of `Min`, `Max` of `Max`; `Min` of `Max` and `Max` of `Min` with one number each, which
    are a `Clip`; `Relu` and `Clip` of `Relu` and `Clip`.

    Limits that are not in order, or are NaN, are left alone; those of two clips that have no
    number in common (`[0, 1]`, then `[2, 3]`) leave one number: 2.
    """

    rules: ClassVar = {"Min": "extreme", "Max": "extreme", "Relu": "clip", "Clip": "clip"}

    def extreme(self, node: ir.Node) -> ir.Value:
        value, outer = _constants_of(node)
        inner = value.node
        require(inner.op_type in ("onnx::Min", "onnx::Max"), "its operand is no Min or Max")
        source, before = _constants_of(inner)
        if inner.op_type == node.op_type:
            return self._same(node, source, [*before, *outer])
        require(opset(self.graph) >= _INPUTS_SINCE, "Clip takes no limits as inputs here")
        require(dtype_of(source) in _CLIPPED, "the dtype is not known, or Clip does not take it")
        for limits in (before, outer):
            for item in limits:
                is_scalar = item.size == 1 and keeps_shape(source, item.shape)
                require(is_scalar, "a limit is no single number, or changes the shape")
        is_min = node.op_type == "onnx::Min"
        low = max(item.item() for item in (before if is_min else outer))
        high = min(item.item() for item in (outer if is_min else before))
        require(low <= high, f"the lower limit {low} is above the upper one, {high}")
        return self._clipped(node, source, (low, high))

    def _same(self, node: ir.Node, source: ir.Value, constants: list[Any]) -> ir.Value:
        join = np.minimum if node.op_type == "onnx::Min" else np.maximum
        size = math.prod(np.broadcast_shapes(*(item.shape for item in constants)))
        require(size <= sum(item.size for item in constants), "the constant would be larger")
        merged = functools.reduce(join, constants)
        name = node.op_type.partition("::")[2]
        return self.made(node, name, source, constant_before(node, np.asarray(merged), "limit"))

    def clip(self, node: ir.Node) -> ir.Value:
        """`Relu` or `Clip` of another of the two."""
        inner = node.inputs[0].node
        require(inner.op_type in ("onnx::Relu", "onnx::Clip"), "its operand is no Relu or Clip")
        if node.op_type == inner.op_type == "onnx::Relu":
            return node.inputs[0]
        require(opset(self.graph) >= _INPUTS_SINCE, "Clip takes no limits as inputs here")
        source = inner.inputs[0]
        require(dtype_of(source) in _CLIPPED, "the dtype is not known, or Clip does not take it")
        first, second = _limits(inner), _limits(node)
        for one, other in zip(first, second, strict=True):
            # no limit turns infinities into the dtype's largest number
            stated = [limit for limit in (one, other) if limit is not None]
            is_mixed = len(stated) == 1 and math.isinf(stated[0])
            require(not is_mixed, "one limit is infinite where the other clip has none")
        return self._clipped(node, source, _joined(first, second))

    def _clipped(self, node: ir.Node, source: ir.Value, limits: Limits) -> ir.Value:
        dtype = _CLIPPED[str(dtype_of(source))]
        inputs = [
            None if limit is None else constant_before(node, np.array(limit, dtype), name)
            for limit, name in zip(limits, ("low", "high"), strict=True)
        ]
        return self.made(node, "Clip", source, *inputs)


_CLIPPED = {
    name: np.dtype(name)
    for name in (
        *("float16", "float32", "float64"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    )
}


def _constants_of(node: ir.Node) -> tuple[ir.Value, list[Any]]:
    """Return the one operand that is no constant, and the others' elements."""
    computed = [value for value in node.inputs if value.node.op_type != ir.CONSTANT]
    require(len(computed) == 1, "it has not one operand that is computed")
    found = [array(value) for value in node.inputs if value.node.op_type == ir.CONSTANT]
    require(found and len({id(v) for v in node.inputs}) == len(node.inputs), "no limit is constant")
    for item in found:
        require(item is not None and item.dtype.kind in "iuf", "a limit cannot be read")
        require(not np.isnan(item).any(), "a limit is NaN")
    return computed[0], found


def _limits(node: ir.Node) -> Limits:
    """Return what a `Clip` or `Relu` leaves; None where there is no limit."""
    if node.op_type == "onnx::Relu":
        return 0, None
    found = []
    for name in ("min", "max"):
        value = optional(node, name)
        item = array(value)
        require(value is None or item is not None, "a limit is known only at run time")
        require(item is None or item.size == 1, "a limit is no single number")
        number = None if item is None else item.item()
        require(number is None or number == number, "a limit is NaN")
        found.append(number)
    low, high = found
    require(low is None or high is None or low <= high, "the lower limit is above the upper one")
    return low, high


def _joined(first: Limits, second: Limits) -> Limits:
    """Return the limits of one clip that does what two do, the second on what the first leaves."""
    (low, high), (floor, ceiling) = first, second

    def within(limit: float | int) -> float | int:
        raised = limit if floor is None else max(limit, floor)
        return raised if ceiling is None else min(raised, ceiling)

    return (floor if low is None else within(low), ceiling if high is None else within(high))
