"""Operators that return what they are given."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from bringup import ir
from bringup.compiler.onnx.library.facts import array, attribute, is_result, keeps_shape, require
from bringup.compiler.onnx.library.node_pass import NodePass

_MOST_ELEMENTS = 1 << 20
"""Larger constants are weights: reading them takes longer than the operator is worth."""


class DropNoOps(NodePass):
    """`x + 0`, `x - 0`, `x * 1`, `x / 1`, a `Dropout` that drops nothing, `Identity`.

    Not where the number is a tensor whose shape, broadcast, is another than that of `x`. The one
    difference: -0.0 + 0.0 is 0.0, and is -0.0 after the rewrite.
    """

    rules: ClassVar = {
        "Add": "either", "Mul": "either", "Sub": "second", "Div": "second", "Dropout": "dropout",
        "Identity": "identity",
    }  # fmt: skip

    def either(self, node: ir.Node) -> ir.Value:
        left, right = node.inputs
        neutral = 0 if node.op_type == "onnx::Add" else 1
        if _is_neutral(right, left, neutral):
            return left
        require(_is_neutral(left, right, neutral), _no_neutral(neutral))
        return right

    def second(self, node: ir.Node) -> ir.Value:
        left, right = node.inputs
        neutral = 0 if node.op_type == "onnx::Sub" else 1
        require(_is_neutral(right, left, neutral), _no_neutral(neutral))
        return left

    def dropout(self, node: ir.Node) -> ir.Value:
        """Return a mask that is read is still computed."""
        require(not _drops(node), "the dropout may train")
        output = node.outputs[0]
        require(output.users, "nothing reads the result")
        return node.inputs[0]

    def identity(self, node: ir.Node) -> ir.Value:
        """It stays where it gives a second name to an input, a constant or another result."""
        (source,) = node.inputs
        is_named = source.node.op_type in (ir.INPUT, ir.CONSTANT) or is_result(source)
        named = "the result needs a name of its own"
        require(not (is_named and is_result(node.outputs[0])), named)
        return source


def _no_neutral(number: int) -> str:
    return f"no operand is a constant of {number}s that leaves the shape as it is"


def _is_neutral(operand: ir.Value, value: ir.Value, number: int) -> bool:
    """Return whether an operand is this number everywhere and is broadcast to `value`."""
    if operand.node.op_type != ir.CONSTANT or value.node.op_type == ir.CONSTANT:
        return False
    desc = operand.desc
    if (
        desc is None
        or desc.shape.numel > _MOST_ELEMENTS
        or not keeps_shape(value, tuple(int(size) for size in desc.shape))
    ):
        return False
    elements = array(operand)
    return elements is not None and elements.dtype.kind != "O" and bool(np.all(elements == number))


def _drops(node: ir.Node) -> bool:
    """Return whether a dropout may do anything."""
    if not node.has_attr("training_mode"):  # before version 7 an attribute said so
        if node.has_attr("is_test"):
            return not attribute(node, "is_test")
        return False
    mode: Any = node.argument("training_mode")
    if mode is None:
        return False
    trains = array(mode)
    if trains is not None and not trains.any():
        return False
    ratio = array(node.argument("ratio"))  # type: ignore[arg-type]
    return ratio is None or bool(ratio.any())
