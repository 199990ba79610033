"""Paddings of convolutions: those of a `Pad` in front, and as numbers; biases that are zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from bringup import ir
from bringup.compiler.onnx.library.facts import (
    array,
    attribute,
    axis_in,
    dims,
    integers,
    known,
    nodes_behind,
    opset,
    optional,
    rank_of,
    require,
)
from bringup.compiler.onnx.library.node_pass import NodePass


class PadIntoConv(NodePass):
    """A `Pad` with what a convolution pads with itself; what `auto_pad` means is worked out."""

    rules: ClassVar = {"Conv": "conv", "ConvInteger": "conv"}

    def conv(self, node: ir.Node) -> ir.Value:
        pad = known(nodes_behind(node.inputs[0], "onnx::Pad"), "nothing is padded in front of it")
        require(attribute(pad, "mode") in ("constant", None), "it is padded with no constant")
        source = pad.inputs[0]
        rank = rank_of(source)
        before, behind = _padding(pad, rank)
        rank = len(before)
        require(not any((*before[:2], *behind[:2])), "batch or channels are padded")
        require(min((*before, *behind)) >= 0, "a padding is negative: it takes elements away")
        self._check_value(node, _value_of(pad))
        own = _own_padding(node, rank - 2)
        sizes = [one + other for one, other in zip(own, (*before[2:], *behind[2:]), strict=True)]
        return _padded(self, node, source, sizes)

    def _check_value(self, node: ir.Node, value: Any) -> None:
        require(value is not None, "what it is padded with is known only at run time")
        wanted: Any = 0
        if node.op_type == "onnx::ConvInteger":
            point = optional(node, "x_zero_point")
            found = array(point)
            require(point is None or found is not None, "the zero point is no constant")
            wanted = 0 if found is None else found
        is_same = np.size(wanted) == 1 and np.all(np.asarray(wanted) == value)
        require(is_same, f"it is padded with {value}, the convolution pads with {wanted}")


class ExplicitPads(NodePass):
    """The numbers that the `auto_pad` of a `Conv` or `ConvInteger` stands for, in its place."""

    rules: ClassVar = {"Conv": "conv", "ConvInteger": "conv"}

    def conv(self, node: ir.Node) -> ir.Value:
        """Match a convolution of known rank, or without padding."""
        require(attribute(node, "auto_pad") not in ("NOTSET", None), "its padding is explicit")
        source = node.inputs[0]
        rank = known(rank_of(source), "the rank is not known")
        return _padded(self, node, source, _own_padding(node, rank - 2))


def _padded(rewriter: NodePass, node: ir.Node, source: ir.Value, sizes: Sequence[int]) -> ir.Value:
    """Return the same convolution of another value, with these sizes as its padding."""
    given = {
        name: attribute(node, name)
        for name in ("dilations", "group", "kernel_shape", "strides")
        if attribute(node, name) is not None
    }
    inputs = node.arguments[1 : 4 if node.op_type == "onnx::ConvInteger" else 3]
    name = node.op_type.partition("::")[2]
    return rewriter.made(node, name, source, *inputs, pads=list(sizes), **given)


def _padding(pad: ir.Node, rank: int | None) -> tuple[Sequence[int], Sequence[int]]:
    """Return what a `Pad` adds in front of and behind every axis."""
    name = "pads" if pad.has_attr("pads") else "paddings"  # of version 1
    pads = known(integers(pad.argument(name)), "the padding is known only at run time")
    half = len(pads) // 2
    axes = optional(pad, "axes")
    if axes is None:
        return pads[:half], pads[half:]
    listed = known(integers(axes), "the axes are known only at run time")
    rank = known(rank, "the rank is not known")
    before, behind = [0] * rank, [0] * rank
    for place, axis in enumerate(listed):
        before[axis_in(axis, rank)] += pads[place]
        behind[axis_in(axis, rank)] += pads[half + place]
    return before, behind


def _value_of(pad: ir.Node) -> Any:
    """Return the number that is padded with; None where it is no constant."""
    if pad.has_attr("value"):
        return attribute(pad, "value")
    given = optional(pad, "constant_value")
    if given is None:
        return 0
    found = array(given)
    return None if found is None or found.size != 1 else found.item()


def _own_padding(conv: ir.Node, spatial: int) -> Sequence[int]:
    """Return the padding of a convolution as numbers: in front of each axis, then behind each."""
    mode = attribute(conv, "auto_pad")
    if mode in ("NOTSET", None):
        return attribute(conv, "pads") or (0,) * 2 * spatial
    if mode == "VALID":
        return (0,) * 2 * spatial
    sizes, weight = dims(conv.inputs[0]), dims(conv.inputs[1])
    kernel = attribute(conv, "kernel_shape") or (weight[2:] if weight else None)
    sizes = known(sizes, f"{mode} depends on a shape that is not known")
    kernel = known(kernel, f"{mode} depends on a kernel that is not known")
    strides = attribute(conv, "strides") or (1,) * spatial
    is_whole = len(sizes) == len(kernel) + 2 and len(strides) == len(kernel)
    require(is_whole, f"{mode} needs as many kernel sizes and strides as the input has axes")
    is_dense = set(attribute(conv, "dilations") or (1,)) == {1}
    require(is_dense, f"{mode} with dilations is not computed alike everywhere")
    less, more = [], []
    for size, width, stride in zip(sizes[2:], kernel, strides, strict=True):
        is_known = isinstance(size, int) and isinstance(width, int)
        require(is_known, f"{mode} depends on sizes that are known only at run time")
        steps = -(-size // stride)
        total = max(0, (steps - 1) * stride + width - size)
        less.append(total // 2)
        more.append(total - total // 2)
    return (*less, *more) if mode == "SAME_UPPER" else (*more, *less)


class DropZeroBiases(NodePass):
    """The bias of a `Conv`, `ConvTranspose`, `Gemm` or `QLinearConv` that is zero."""

    rules: ClassVar = {
        "Conv": "bias", "ConvTranspose": "bias", "Gemm": "bias", "QLinearConv": "bias",
    }  # fmt: skip

    def bias(self, node: ir.Node) -> None:
        """Keep the node without it. Before version 11 a `Gemm` needs one."""
        is_gemm = node.op_type == "onnx::Gemm"
        name = "C" if is_gemm else "B"
        elements = array(optional(node, name))
        is_zero = elements is not None and elements.dtype.kind in "iuf" and not elements.any()
        require(is_zero, "it has no bias that is a constant of zeros")
        require(not is_gemm or opset(self.graph) >= 11, "Gemm needs one in this version")
        require(not is_gemm or np.isfinite(attribute(node, "beta")), "beta is not finite")
        bias = known(optional(node, name), "it has no bias")
        self.graph.set_argument(node, name, None)
        self.graph.erase_dead(bias.node)
