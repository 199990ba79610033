"""Scatters that write every element."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from bringup import ir
from bringup.compiler.onnx.library.facts import (
    array,
    attribute,
    dims,
    integers,
    known,
    nodes_behind,
    require,
    same_dim,
)
from bringup.compiler.onnx.library.node_pass import NodePass


class DropScatters(NodePass):
    """A `ScatterND` into all rows of a tensor, in order (constant, or a `Range`): its updates."""

    rules: ClassVar = {"ScatterND": "scatter"}

    def scatter(self, node: ir.Node) -> ir.Value:
        data, indices, updates = node.inputs
        require(attribute(node, "reduction") in (None, "none"), "it adds to what there is")
        sizes = known(dims(data), "the shape of what is written into is not known")
        require(sizes, "what is written into has no rows")
        rows = array(indices)
        if rows is None:
            count = _range_end(indices)
            is_all = count is not None and same_dim(count, sizes[0])
            require(is_all, "the rows may be others than all there are")
        else:
            size = sizes[0]
            is_all = isinstance(size, int) and np.array_equal(rows, np.arange(size)[:, None])
            require(is_all, "the rows are not all there are, in order")
        return updates


def _range_end(indices: ir.Value) -> ir.Dim | None:
    """Return the n of [[0], [1], ..., [n - 1]] computed from a tensor's shape."""
    wide = nodes_behind(indices, "onnx::Unsqueeze")
    if wide is None or integers(wide.argument("axes")) not in ((-1,), (1,)):
        return None
    numbers = nodes_behind(wide.inputs[0], "onnx::Range")
    if numbers is None:
        return None
    start, end, step = numbers.inputs
    if not (_is_number(start, 0) and _is_number(step, 1)):
        return None
    size = nodes_behind(end, "onnx::Gather")
    if size is None or attribute(size, "axis") not in (0, None):
        return None
    shape = nodes_behind(size.inputs[0], "onnx::Shape")
    place = array(size.inputs[1])
    if shape is None or place is None or place.ndim != 0:
        return None
    sizes = dims(shape.inputs[0])
    if sizes is None or attribute(shape, "start") or attribute(shape, "end") is not None:
        return None
    axis = int(place)
    return sizes[axis] if -len(sizes) <= axis < len(sizes) else None


def _is_number(value: ir.Value, number: int) -> bool:
    found = array(value)
    return found is not None and found.size == 1 and found.item() == number
