"""Matrix products between reshapes that only take dimensions together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from bringup import ir
from bringup.compiler.onnx.library.facts import (
    dims,
    known,
    nodes_behind,
    require,
    same_dim,
    same_dims,
)
from bringup.compiler.onnx.library.node_pass import NodePass

__all__ = ["MatMulWithoutReshapes"]

Sizes = Sequence[ir.Dim]


class MatMulWithoutReshapes(NodePass):
    """`Reshape(MatMul(Reshape(a), Reshape(b)))` is `MatMul(a, b)` where `MatMul` itself treats the
    leading dimensions so; one of the inner reshapes may be missing.
    """

    rules: ClassVar = {"Reshape": "reshape"}

    def reshape(self, node: ir.Node) -> ir.Value:
        """Compare all shapes: the result's says nothing of what is multiplied with what."""
        product = known(nodes_behind(node.inputs[0], "onnx::MatMul"), "it reshapes no product")
        require(len(product.users) == 1, "the product is read elsewhere")
        left, right = product.inputs
        first, second = _source(left), _source(right)
        require(first is not left or second is not right, "no operand is reshaped")
        inner, outer = (_sizes(left), _sizes(right)), (_sizes(first), _sizes(second))
        result = _shape_of_product(inner, outer)
        require(result is not None, "the reshapes change what is multiplied")
        require(same_dims(result, dims(node.output)), "the result is of another shape")
        return self.made(node, "MatMul", first, second)


def _source(value: ir.Value) -> ir.Value:
    node = nodes_behind(value, "onnx::Reshape")
    return value if node is None else node.inputs[0]


def _sizes(value: ir.Value) -> Sizes:
    return known(dims(value), "a shape is not known")


def _shape_of_product(inner: tuple[Sizes, Sizes], outer: tuple[Sizes, Sizes]) -> Sizes | None:
    """The shape of the product of the operands as they were before they were reshaped; None where
    it is another product.
    """
    (left, right), (first, second) = inner, outer
    if not same_dim(left[-1], first[-1]):
        return None
    if len(right) == 2:  # one matrix: rows of the left operand stay rows
        column = len(second) == 1 and same_dims(right, (*second, 1))
        if column or same_dims(right, second):
            return first[:-1] if column else (*first[:-1], second[-1])
        ones = all(same_dim(size, 1) for size in second[:-2])
        if ones and len(second) <= len(first) and same_dims(right, second[-2:]):
            return (*first[:-1], second[-1])
        return None
    if min(len(left), len(first), len(second)) < 2:
        return None
    is_batch = same_dims(left[:-2], right[:-2]) and same_dims(first[:-2], second[:-2])
    if is_batch and same_dims(left[-2:], first[-2:]) and same_dims(right[-2:], second[-2:]):
        return (*first[:-1], second[-1])
    return None
