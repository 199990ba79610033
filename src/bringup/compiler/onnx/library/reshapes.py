"""Operators that change nothing but the shape: none, or one `Reshape`, where there are several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from bringup import ir
from bringup.compiler.onnx.library.facts import (
    attribute,
    axis_in,
    dims,
    integers,
    keeps_shape,
    known,
    nodes_behind,
    opset,
    optional,
    rank_of,
    require,
    same_dims,
)
from bringup.compiler.onnx.library.node_pass import NodePass, constant_before

_SAME_ELEMENTS = ("onnx::Reshape", "onnx::Flatten", "onnx::Squeeze", "onnx::Unsqueeze")
_ALLOWZERO_SINCE = 14
_INPUT_SINCE = 5
"""Before it the shape is an attribute of `Reshape`."""


class MergeReshapes(NodePass):
    """A `Reshape` or `Expand` to the shape there is; a `Reshape` of what was reshaped, flattened,
    squeezed or unsqueezed; `Flatten` as a `Reshape`; a computed shape that is known.

    A size 0 means "as it was" in a `Reshape` unless `allowzero` is set, which version 14 brought:
    tensors without elements are told apart.
    """

    rules: ClassVar = {"Expand": "expand", "Flatten": "flatten", "Reshape": "reshape"}

    def expand(self, node: ir.Node) -> ir.Value:
        """It does nothing if every size is 1, or as it was."""
        source, shape = node.inputs
        wanted = integers(shape)
        keeps = wanted is not None and keeps_shape(source, wanted)
        is_same = same_dims(dims(source), dims(node.output))
        require(keeps or is_same, "it may change the shape")
        return source

    def flatten(self, node: ir.Node) -> ir.Value:
        """Match where one of the two sizes is known and not 0."""
        require(opset(self.graph) >= _INPUT_SINCE, "Reshape has its shape as an attribute here")
        (source,) = node.inputs
        sizes = dims(source)
        axis = axis_in(attribute(node, "axis"), None if sizes is None else len(sizes))
        if axis == 0:
            return self._reshaped(node, source, (1, -1))
        sizes = known(sizes, "the shape is not known")
        before, behind = _product(sizes[:axis]), _product(sizes[axis:])
        if before is not None and behind is not None:
            return self._reshaped(node, source, (before, behind))
        require(before or behind, "both sizes, or one that may be 0, are known only at run time")
        return self._reshaped(node, source, (-1, behind) if behind else (before, -1))

    def reshape(self, node: ir.Node) -> ir.Value:
        """Drop it, read through what is in front of it, or tell it its shape."""
        require(optional(node, "shape") is not None, "the shape is an attribute")
        source, shape = node.inputs
        wanted = integers(shape)
        is_copy = wanted is not None and not attribute(node, "allowzero") and not any(wanted)
        keeps = same_dims(dims(source), dims(node.output))
        if keeps or (rank_of(source) == 1 and wanted == (-1,)):
            return source
        if is_copy and wanted is not None and len(wanted) == rank_of(source):
            return source
        if wanted is None:
            return self._reshaped(node, source, _sizes_of(node.output))
        require(source.node.op_type in _SAME_ELEMENTS, "it reshapes nothing that was reshaped")
        origin = source.node.inputs[0]
        zeros = any(size == 0 for size in wanted)
        if zeros and not attribute(node, "allowzero"):
            wanted = _without_copies(wanted, dims(source))
        return self._reshaped(node, origin, wanted)

    def _reshaped(self, node: ir.Node, source: ir.Value, shape: Sequence[int | None]) -> ir.Value:
        """Return a `Reshape` to sizes of which a 0 means that there are no elements."""
        extra = {}
        if any(size == 0 for size in shape):
            has = opset(self.graph) >= _ALLOWZERO_SINCE
            require(has, "a size is 0, which this version of Reshape takes for another")
            require(-1 not in shape, "a size is 0 and another is left open")
            extra["allowzero"] = 1
        sizes = constant_before(node, np.array(shape, np.int64), "shape")
        return self.made(node, "Reshape", source, sizes, **extra)


def _product(sizes: Sequence[ir.Dim]) -> int | None:
    numbers = [size for size in sizes if isinstance(size, int)]
    if 0 in numbers:
        return 0
    return math.prod(numbers) if len(numbers) == len(sizes) else None


def _sizes_of(value: ir.Value) -> tuple[int, ...]:
    """Return the shape of a value with at most one size left open."""
    sizes = known(dims(value), "the shape is computed, and not known")
    numbers = tuple(size if isinstance(size, int) else -1 for size in sizes)
    require(numbers.count(-1) <= 1, "the shape is computed, and has several unknown sizes")
    return numbers


def _without_copies(wanted: Sequence[int], sizes: Sequence[ir.Dim] | None) -> tuple[int, ...]:
    """Return sizes without a 0 that copies one; `PassSkipException` where that one is unknown."""
    made = []
    for place, size in enumerate(wanted):
        kept = sizes[place] if sizes is not None and place < len(sizes) else None
        if size != 0:
            made.append(size)
        elif isinstance(kept, int):
            require(kept > 0, "a size that is kept is 0")
            made.append(kept)
        else:
            made.append(-1)
    require(made.count(-1) <= 1, "sizes are kept that are not known")
    return tuple(made)


class MergeUnsqueezes(NodePass):
    """An `Unsqueeze` of another one."""

    rules: ClassVar = {"Unsqueeze": "unsqueeze"}

    def unsqueeze(self, node: ir.Node) -> ir.Value:
        """Count all new axes in the last shape."""
        inner = known(
            nodes_behind(node.inputs[0], "onnx::Unsqueeze"),
            "it unsqueezes nothing that was unsqueezed",
        )
        source = inner.inputs[0]
        rank = rank_of(source)
        first = _axes(inner, rank)
        second = _axes(node, None if rank is None else rank + len(first))
        free = iter(
            axis for axis in range(max((*first, *second)) + 1 + len(second)) if axis not in second
        )
        places = [next(free) for _ in range(max(first) + 1)]
        merged = sorted({*second, *(places[axis] for axis in first)})
        if optional(node, "axes") is None:
            return self.made(node, "Unsqueeze", source, axes=merged)
        axes = constant_before(node, np.array(merged, np.int64), "axes")
        return self.made(node, "Unsqueeze", source, axes)


def _axes(node: ir.Node, rank: int | None) -> tuple[int, ...]:
    """Return the axes of an `Unsqueeze` of a tensor of this rank, counted from the front."""
    stated = known(integers(node.argument("axes")), "the axes are known only at run time")
    whole = None if rank is None else rank + len(stated)
    found = tuple(axis_in(axis, whole) for axis in stated)
    require(len(set(found)) == len(found), "an axis is named twice")
    return found
