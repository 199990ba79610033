"""BatchNormalization of what a linear operator with constant weights computes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from bringup import ir
from bringup.compiler.onnx.library.facts import (
    array,
    attribute,
    is_result,
    known,
    optional,
    require,
)
from bringup.compiler.onnx.library.node_pass import NodePass, constant_before

_INFERENCE_SINCE = 9
"""Before it an attribute could ask for statistics of every element."""


class BatchNormIntoWeights(NodePass):
    """A `BatchNormalization` of a `Conv`, `ConvTranspose` or `Gemm` that nothing else reads: other
    weights and another bias.

    The numbers are computed in float64, and only for float32 and float64: narrower weights would
    be rounded again.
    """

    rules: ClassVar = {"BatchNormalization": "normalization"}

    def normalization(self, node: ir.Node) -> ir.Value:
        inner = node.inputs[0].node
        scaled = known(_SCALED.get(inner.op_type), "it normalizes no Conv, ConvTranspose or Gemm")
        is_alone = len(inner.output.users) == 1 and not is_result(inner.output)
        require(is_alone, "what it normalizes is read elsewhere")
        _require_inference(node)
        weight = _weight_of(inner)
        names = "C" if inner.op_type == "onnx::Gemm" else "B"
        bias, stated = array(optional(inner, names)), optional(inner, names)
        require(stated is None or bias is not None, "the bias is no constant")
        statistics = [array(value) for value in node.inputs[1:5]]
        for item in statistics:
            require(item is not None and item.dtype == weight.dtype, "a parameter is no constant")
        scale, shift, mean, variance = (item.astype(np.float64) for item in statistics)
        with np.errstate(all="ignore"):
            factor = scale / np.sqrt(variance + attribute(node, "epsilon"))
        require(np.isfinite(factor).all(), "the variance is not positive")
        wide = scaled(inner, weight.astype(np.float64), factor)
        require(wide is not None, "weights and parameters do not fit")
        moved = (_bias_of(inner, bias, factor.size) - mean) * factor + shift
        new_weight, new_bias = (
            constant_before(node, item.astype(weight.dtype), name)
            for item, name in ((wide, "weight"), (moved, "bias"))
        )
        given = {
            parameter.name: attribute(inner, parameter.name)
            for parameter in inner.operator.parameters
            if parameter.keyword_only and attribute(inner, parameter.name) is not None
        }
        given.pop("beta", None)  # the bias has it
        name = inner.op_type.partition("::")[2]
        return self.made(node, name, inner.inputs[0], new_weight, new_bias, **given)


def _require_inference(node: ir.Node) -> None:
    is_old = node.has_attr("spatial") or node.has_attr("is_test")
    require(not is_old, f"before version {_INFERENCE_SINCE} it may mean something else")
    require(len(node.outputs) == 1 and not attribute(node, "training_mode"), "it trains")


def _weight_of(node: ir.Node) -> Any:
    value = node.inputs[1]
    weight = array(value)
    require(weight is not None, "the weight is no constant")
    require(len(value.users) == 1, "the weight is read elsewhere, and would be there twice")
    require(str(weight.dtype) in ("float32", "float64"), f"{weight.dtype} would be rounded again")
    return weight


def _bias_of(node: ir.Node, bias: Any, count: int) -> Any:
    """Return the bias as one number for each channel, in float64."""
    if bias is None:
        return np.zeros(count)
    wide = bias.astype(np.float64)
    if node.op_type == "onnx::Gemm":
        require(wide.size in (1, count) and wide.size == (wide.shape or (1,))[-1], _ROWS)
        wide = wide.reshape(-1) * attribute(node, "beta")
    return wide


_ROWS = "the bias differs from row to row"


def _scaled_conv(node: ir.Node, weight: Any, factor: Any) -> Any:
    if weight.shape[0] != factor.size:
        return None
    return weight * factor.reshape(-1, *[1] * (weight.ndim - 1))


def _scaled_transposed(node: ir.Node, weight: Any, factor: Any) -> Any:
    """Return the weight of a transposed convolution, scaled by output channel."""
    group = attribute(node, "group")
    rows, columns, *kernel = weight.shape
    if rows % group or columns * group != factor.size:
        return None
    parts = weight.reshape(group, rows // group, columns, *kernel)
    factors = factor.reshape(group, 1, columns, *[1] * len(kernel))
    return (parts * factors).reshape(weight.shape)


def _scaled_gemm(node: ir.Node, weight: Any, factor: Any) -> Any:
    columns = factor[:, None] if attribute(node, "transB") else factor
    size = weight.shape[0 if attribute(node, "transB") else 1]
    return weight * columns if size == factor.size else None


_SCALED = {
    "onnx::Conv": _scaled_conv,
    "onnx::ConvTranspose": _scaled_transposed,
    "onnx::Gemm": _scaled_gemm,
}
