"""Slices of everything, of slices, and those that split a tensor."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bringup import ir, passes
from bringup.compiler.onnx.library.facts import (
    MOST_INTEGER,
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
from bringup.compiler.onnx.library.node_pass import NodePass, constant_before
from bringup.errors import PassError

_INPUTS_SINCE = 10
_OPEN_END = 2**31 - 1
"""This and larger ends are taken for no end."""
_SPLIT_INPUT_SINCE = 13


@dataclass(frozen=True)
class _Part:
    """What a slice takes of one axis, as the node states it."""

    start: int
    stop: int
    step: int

    def of(self, size: int) -> range:
        """Return the places that it takes of so many. ONNX limits starts and ends as Python does,
        but for a start in front of everything from which it goes backwards: to ONNX and onnxruntime
        that is the first place, to its reference implementation none.
        """
        is_clear = self.step > 0 or self.start >= -size
        require(is_clear, "backwards from in front of everything, where runtimes differ")
        return range(size)[self.start : self.stop : self.step]


def _parts(node: ir.Node) -> dict[int, _Part]:
    """Return what a slice takes, by axis; `PassSkipException` if that is known only at run time."""
    starts, ends = (
        known(integers(node.argument(name)), f"{name} are known only at run time")
        for name in ("starts", "ends")
    )
    stated = [_list(node, name) for name in ("axes", "steps")]
    axes = stated[0] if stated[0] is not None else tuple(range(len(starts)))
    steps = stated[1] if stated[1] is not None else (1,) * len(starts)
    require(len(starts) == len(ends) == len(axes) == len(steps), "the lists differ in length")
    require(0 not in steps, "a step is 0")
    for stop, step in zip(ends, steps, strict=True):
        is_open = step < 0 and stop >= _OPEN_END
        require(not is_open, "backwards to an end that some runtimes take for the first place")
    rank = rank_of(node.inputs[0])
    found = {
        axis_in(axis, rank): _Part(*part)
        for axis, *part in zip(axes, starts, ends, steps, strict=True)
    }
    require(len(found) == len(axes), "an axis is named twice")
    is_there = rank is None or all(0 <= axis < rank for axis in found)
    require(is_there, "an axis is none of the tensor")
    return found


def _list(node: ir.Node, name: str) -> tuple[int, ...] | None:
    """Return axes or steps; None where there are none."""
    given: Any = optional(node, name) or attribute(node, name)
    if given is None:
        return None
    return known(integers(given), f"{name} are known only at run time")


def _takes_all(part: _Part, size: ir.Dim | None) -> bool:
    if part.step != 1:
        return False
    if isinstance(size, int):
        return len(part.of(size)) == size
    return part.start == 0 and part.stop == MOST_INTEGER


class MergeSlices(NodePass):
    """A `Slice` of everything; a `Slice` of a `Slice`, of the same axes or others."""

    rules: ClassVar = {"Slice": "slice"}

    def slice(self, node: ir.Node) -> ir.Value:
        """Drop it, or read through the slice in front."""
        source = node.inputs[0]
        parts = _parts(node)
        sizes = dims(source)
        if all(
            _takes_all(part, None if sizes is None else sizes[axis]) for axis, part in parts.items()
        ):
            return source
        inner = known(nodes_behind(source, "onnx::Slice"), "it takes a part, and slices no slice")
        require(opset(self.graph) >= _INPUTS_SINCE, "slices have no steps in this version")
        origin = inner.inputs[0]
        whole = dims(origin)
        merged = _parts(inner)
        for axis, part in parts.items():
            size = None if whole is None else whole[axis]
            merged[axis] = _merged(merged[axis], part, size) if axis in merged else part
        axes = sorted(merged)
        lists = {
            "starts": [merged[axis].start for axis in axes],
            "ends": [merged[axis].stop for axis in axes],
            "axes": axes,
            "steps": [merged[axis].step for axis in axes],
        }
        inputs = [
            constant_before(node, np.array(numbers, np.int64), name)
            for name, numbers in lists.items()
        ]
        return self.made(node, "Slice", origin, *inputs)


def _merged(first: _Part, second: _Part, size: ir.Dim | None) -> _Part:
    """Return what both take of one axis; `PassSkipException` where that depends on its size."""
    if isinstance(size, int):
        taken = first.of(size)
        places = second.of(len(taken))
        if not places:
            return _Part(0, 0, 1)
        step = taken.step * places.step
        stop = taken[places[-1]] + (1 if step > 0 else -1)
        return _Part(taken[places[0]], stop if stop >= 0 else -size - 1, step)
    numbers = (first.start, first.stop, second.start, second.stop)
    is_plain = first.step == second.step == 1 and min(numbers) >= 0
    require(is_plain, "what is left of the slice depends on a size that is not known")
    start = min(first.start + second.start, MOST_INTEGER)
    return _Part(start, min(first.stop, first.start + second.stop), 1)


class SlicesToSplit(passes.FusionBasePass):
    """Slices that cut one axis into parts, each element in one: a `Split`."""

    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        """Gather the slices of each value once, then look which of them cut it."""
        groups: defaultdict[tuple[ir.Value, int], dict[range, list[ir.Node]]]
        groups = defaultdict(lambda: defaultdict(list))
        slices = graph.find("onnx::Slice")
        require(slices, "the graph has no onnx::Slice")
        for node in slices:
            found = _cut(node)
            if found is not None:
                axis, taken = found
                groups[node.inputs[0], axis][taken].append(node)
        for (_, axis), cut in groups.items():
            source = next(iter(cut.values()))[0].inputs[0]  # now: it may have been a slice itself
            size = (dims(source) or ())[axis]
            ordered = sorted(cut, key=lambda part: part.start)
            stops = [part.stop for part in ordered]
            follow = [part.start for part in ordered] == [0, *stops[:-1]]
            try:
                cuts = len(cut) > 1 and follow and stops[-1] == size
                require(cuts, f"the slices of axis {axis} do not cut it in parts")
                with graph.savepoint():
                    parts = [(len(part), cut[part]) for part in ordered]
                    _split(graph, context, source, axis, parts)
            except (passes.PassSkipException, PassError) as reason:
                context.refuse(source.node.name, str(reason))


def _cut(node: ir.Node) -> tuple[int, range] | None:
    """Return the one axis that a slice takes a part of, and the part; None of any other slice."""
    try:
        parts = _parts(node)
    except passes.PassSkipException:
        return None
    sizes = dims(node.inputs[0])
    if len(parts) != 1 or sizes is None:
        return None
    ((axis, part),) = parts.items()
    size = sizes[axis]
    if not isinstance(size, int) or part.step != 1:
        return None
    taken = part.of(size)
    return (axis, taken) if taken else None


def _split(
    graph: ir.Graph,
    context: passes.PassContext,
    source: ir.Value,
    axis: int,
    parts: list[tuple[int, list[ir.Node]]],
) -> None:
    nodes = [node for _, cut in parts for node in cut]
    first = min(nodes, key=lambda node: node.order)
    sizes = [size for size, _ in parts]
    op = graph.inserting_before(first).op
    given: dict[str, Any] = {"axis": axis, "outputs": len(parts)}
    inputs: list[object] = [source]
    if opset(graph) >= _SPLIT_INPUT_SINCE:
        inputs.append(constant_before(first, np.array(sizes, np.int64), "split"))
    else:
        given["split"] = sizes
    made: Any = op("onnx::Split", *inputs, **given)
    for holder, (_, cut) in zip(made, parts, strict=True):
        for node in cut:
            graph.replace_all_uses(node.output, holder)
    passes.report_fuse(nodes, [made[0].value.node], context)
    graph.erase_dead(*nodes)
