"""Matrix products: between reshapes that only take dimensions together, and with a bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from bringup import ir
from bringup.compiler.onnx.library.facts import (
    attribute,
    dims,
    dtype_of,
    is_result,
    known,
    nodes_behind,
    opset,
    rank_of,
    require,
    same_dim,
    same_dims,
)
from bringup.compiler.onnx.library.node_pass import NodePass

Sizes = Sequence[ir.Dim]
_BROADCASTS_SINCE = 7
"""Before it a `Gemm` broadcasts its bias only where an attribute says so."""
_GEMM_DTYPES = ("float16", "float32", "float64")
"""Those that every version has, and that runtimes compute: hardly one has a `Gemm` of integers."""


class MatMulWithoutReshapes(NodePass):
    """`Reshape(MatMul(Reshape(a), Reshape(b)))` is `MatMul(a, b)`; an inner one may be missing."""

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
    """Return the product's shape before the operands were reshaped; None for another product."""
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


class MatMulAddToGemm(NodePass):
    """`Add` of a bias to a `MatMul` of two matrices, also transposed ones: a `Gemm`."""

    rules: ClassVar = {"Add": "add"}

    def add(self, node: ir.Node) -> ir.Value:
        left, right = node.inputs
        reason = "no operand is a MatMul of matrices that nothing else reads"
        product, bias = (left, right) if _is_own_product(left) else (right, left)
        require(_is_own_product(product) and bias is not product, reason)
        require(opset(self.graph) >= _BROADCASTS_SINCE, "Gemm broadcasts otherwise in this version")
        require(dtype_of(product) in _GEMM_DTYPES, "Gemm does not compute this dtype everywhere")
        _require_broadcast(bias, product)
        (first, transposed), (second, is_turned) = map(_untransposed, product.node.inputs)
        return self.made(
            node, "Gemm", first, second, bias, transA=int(transposed), transB=int(is_turned)
        )


def _is_own_product(value: ir.Value) -> bool:
    node = nodes_behind(value, "onnx::MatMul")
    if node is None or len(value.users) != 1 or is_result(value):
        return False
    return [rank_of(operand) for operand in node.inputs] == [2, 2]


def _require_broadcast(bias: ir.Value, product: ir.Value) -> None:
    """Require a bias that broadcasts to the product, as a `Gemm` needs."""
    sizes = known(dims(bias), "the shape of the bias is not known")
    whole = known(dims(product), "the shape of the product is not known")
    require(len(sizes) <= len(whole), "the bias has more dimensions than the product")
    behind = whole[len(whole) - len(sizes) :]
    fits = all(
        same_dim(size, 1) or same_dim(size, full) for size, full in zip(sizes, behind, strict=True)
    )
    require(fits, "the bias may be larger than the product")


def _untransposed(value: ir.Value) -> tuple[ir.Value, bool]:
    """Return what a matrix is read from, and whether that is its transposition."""
    node = nodes_behind(value, "onnx::Transpose")
    if node is None or attribute(node, "perm") not in ((1, 0), None):
        return value, False
    return node.inputs[0], True
