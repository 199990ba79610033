"""Shapes that a model computes: what the elements of a shape are, where its nodes tell.

onnx infers a node at a time; a `Reshape` by what `Shape`, `Gather` and `Concat` make says nothing
then. Here the few operators that shapes are made of are followed back to sizes of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import onnx

from bringup import ir
from bringup.compiler.onnx.constants import as_constant
from bringup.compiler.onnx.types import OtherType, dtype_name, is_unknown, unknown_size
from bringup.errors import ModelError

_MOST_NODES = 64
_MOST_ELEMENTS = 64
_LARGEST = 2**63 - 1

Element: TypeAlias = "ir.Dim | None"
Elements: TypeAlias = "tuple[ir.Dim | None, ...]"
"""Numbers, sizes with names, and None for what is not known."""
Vector: TypeAlias = "tuple[int, Elements]"
"""How many dimensions a tensor has, none or one, and its elements."""


def computed_look(node: ir.Node, look: object) -> object:
    """Return `look` with the shape that nodes compute for a `Reshape`, `Expand`, or constant."""
    rule = _RULES.get(node.op_type)
    dtype = None if rule is None else _dtype_of(look)
    if rule is None or dtype is None:
        return look
    shape = _argument(node, "input" if rule is _filled else "shape")
    if not isinstance(shape, ir.Value) or shape.node.op_type == ir.CONSTANT:
        return look
    read = _Reader().read(shape)
    computed = None if read is None else rule(node, read[1])
    if computed is None:
        return look
    if not isinstance(look, ir.TensorDesc):
        look = _with_rank(len(computed), dtype)
    if len(look.shape) != len(computed):
        return look
    sizes = [
        known if size is None or not is_unknown(known) else size
        for known, size in zip(look.shape, computed, strict=True)
    ]
    return ir.TensorDesc(ir.Shape(sizes), dtype)


def _dtype_of(look: object) -> str | None:
    if isinstance(look, ir.TensorDesc):
        return look.dtype
    proto = look.decoded() if isinstance(look, OtherType) else onnx.TypeProto()
    is_tensor = proto.WhichOneof("value") == "tensor_type"
    return dtype_name(proto.tensor_type.elem_type) if is_tensor else None


def _with_rank(rank: int, dtype: str) -> ir.TensorDesc:
    return ir.TensorDesc(ir.Shape([unknown_size() for _ in range(rank)]), dtype)


# What operators make of a shape with these elements


def _reshaped(node: ir.Node, elements: Elements) -> Elements | None:
    """Let a named size, which 0 would copy, count only where it is that size."""
    known = _sizes(node.inputs[0])
    source = known or ()
    keeps_zero = bool(_argument(node, "allowzero"))
    sizes: list[Element] = []
    for place, element in enumerate(elements):
        own = source[place] if place < len(source) else None
        if isinstance(element, int):
            number = element if element >= 0 else None
            sizes.append(own if element == 0 and not keeps_zero else number)
        else:
            is_own = element is not None and own is not None and ir.same_size(element, own)
            sizes.append(element if keeps_zero or is_own else None)
    open_places = [place for place, size in enumerate(sizes) if size is None]
    if known is not None and len(open_places) == 1 and _is_rest(elements[open_places[0]]):
        sizes[open_places[0]] = _rest(source, [size for size in sizes if size is not None])
    return tuple(sizes)


def _is_rest(element: Element) -> bool:
    return isinstance(element, int) and element == -1


def _rest(source: Sequence[Element], taken: list[ir.Dim]) -> int | None:
    """Return what -1 stands for: the number of elements by the other sizes; names must cancel."""
    names = [str(size) for size in taken if not isinstance(size, int)]
    count = 1
    for size in source:
        if isinstance(size, int):
            count *= size
        elif size is not None and str(size) in names:
            names.remove(str(size))
        else:
            return None
    by = math.prod(size for size in taken if isinstance(size, int))
    return count // by if not names and by and count and count % by == 0 else None


def _expanded(node: ir.Node, elements: Elements) -> Elements | None:
    source = _sizes(node.inputs[0])
    if source is None or not _are_sizes(elements):
        return None
    rank = max(len(source), len(elements))
    own = (*[1] * (rank - len(source)), *source)
    wanted = (*[1] * (rank - len(elements)), *elements)
    return tuple(map(_broadcast, own, wanted))


def _broadcast(one: Element, other: Element) -> Element:
    for size, against in ((one, other), (other, one)):
        if isinstance(size, int):
            return against if size == 1 else size
    both = one is not None and other is not None and ir.same_size(one, other)
    return one if both else None


def _filled(_node: ir.Node, elements: Elements) -> Elements | None:
    return elements if _are_sizes(elements) else None


def _are_sizes(elements: Elements) -> bool:
    return all(not isinstance(size, int) or size >= 0 for size in elements)


_RULES: dict[str, Callable[[ir.Node, Elements], Elements | None]] = {
    "onnx::Reshape": _reshaped,
    "onnx::Expand": _expanded,
    "onnx::ConstantOfShape": _filled,
}


# What makes shapes


class _Reader:
    """Follows the nodes behind a value, a limited number of them."""

    def __init__(self) -> None:
        self._left = _MOST_NODES

    def read(self, value: ir.Value) -> Vector | None:
        """Return the elements of a tensor of at most one dimension; None of any other."""
        self._left -= 1
        rule = _READERS.get(value.node.op_type)
        found = None if rule is None or self._left < 0 else rule(self, value.node)
        if found is not None:
            return found if len(found[1]) <= _MOST_ELEMENTS else None
        sizes = _sizes(value)
        if sizes == ():
            return 0, (None,)
        if sizes is None or len(sizes) != 1 or not isinstance(sizes[0], int):
            return None
        return (1, (None,) * sizes[0]) if sizes[0] <= _MOST_ELEMENTS else None

    def numbers(self, argument: object) -> tuple[int, ...] | None:
        """Return an attribute or input of integers; None where one is not known."""
        read = self.read(argument) if isinstance(argument, ir.Value) else (1, argument)
        items = None if read is None else read[1]
        if not isinstance(items, tuple):
            return None
        known = tuple(item for item in items if isinstance(item, int))
        return known if len(known) == len(items) else None

    def constant(self, node: ir.Node) -> Vector | None:
        if node.payload is None:
            return None
        payload = as_constant(node.payload)
        if "int" not in payload.desc.dtype or len(payload.desc.shape) > 1:
            return None
        if payload.desc.shape.numel > _MOST_ELEMENTS:
            return None
        try:
            array = payload.numpy()
        except ModelError:  # the file with the elements is not there
            return None
        return array.ndim, tuple(int(item) for item in array.reshape(-1))

    def shape(self, node: ir.Node) -> Vector | None:
        """Return the sizes of a tensor, or some of them."""
        sizes = _sizes(node.inputs[0])
        start, end = _argument(node, "start"), _argument(node, "end")
        is_plain = all(item is None or isinstance(item, int) for item in (start, end))
        return None if sizes is None or not is_plain else (1, sizes[start:end])

    def gather(self, node: ir.Node) -> Vector | None:
        data, indices = map(self.read, node.inputs)
        places = self.numbers(node.inputs[1])
        if data is None or indices is None or places is None or data[0] != 1:
            return None
        count = len(data[1])
        if _argument(node, "axis") not in (0, -1) or not all(-count <= p < count for p in places):
            return None
        return indices[0], tuple(data[1][place] for place in places)

    def concat(self, node: ir.Node) -> Vector | None:
        parts = [self.read(value) for value in node.inputs]
        if _argument(node, "axis") not in (0, -1):
            return None
        elements: list[Element] = []
        for part in parts:
            if part is None or part[0] != 1:
                return None
            elements.extend(part[1])
        return 1, tuple(elements)

    def unsqueeze(self, node: ir.Node) -> Vector | None:
        """Return a number as a shape."""
        data, axes = self.read(node.inputs[0]), self.numbers(_argument(node, "axes"))
        return (1, data[1]) if data is not None and data[0] == 0 and axes in ((0,), (-1,)) else None

    def squeeze(self, node: ir.Node) -> Vector | None:
        """Return a shape of one element as a number."""
        data = self.read(node.inputs[0])
        return (0, data[1]) if data is not None and data[0] == len(data[1]) == 1 else None

    def slice(self, node: ir.Node) -> Vector | None:
        data = self.read(node.inputs[0])
        ends = [self.numbers(_argument(node, name)) for name in ("starts", "ends")]
        rest = [_argument(node, name) for name in ("axes", "steps")]
        axes, steps = (None if item is None else self.numbers(item) for item in rest)
        is_known = (rest[0] is None or axes in ((0,), (-1,))) and (rest[1] is None or steps == (1,))
        if data is None or data[0] != 1 or not is_known or any(item is None for item in ends):
            return None
        (starts, stops) = ends
        if len(starts or ()) != 1 or len(stops or ()) != 1:
            return None
        return 1, data[1][starts[0] : stops[0]]  # type: ignore[index]

    def same(self, node: ir.Node) -> Vector | None:
        return self.read(node.inputs[0])

    def cast(self, node: ir.Node) -> Vector | None:
        """Whole numbers as int64."""
        desc = node.inputs[0].desc
        is_whole = desc is not None and "int" in desc.dtype
        is_wide = _argument(node, "to") == onnx.TensorProto.INT64
        return self.read(node.inputs[0]) if is_whole and is_wide else None

    def arithmetic(self, node: ir.Node) -> Vector | None:
        """Numbers; sizes with names are not reckoned with."""
        desc = node.inputs[0].desc
        left, right = map(self.read, node.inputs)
        if left is None or right is None or desc is None or desc.dtype != "int64":
            return None
        rank, count = max(left[0], right[0]), max(len(left[1]), len(right[1]))
        if not count or any(len(side[1]) not in (1, count) for side in (left, right)):
            return None
        pairs = zip(*(side[1] * (count // len(side[1])) for side in (left, right)), strict=True)
        return rank, tuple(_calculated(node.op_type, *pair) for pair in pairs)


def _calculated(op_type: str, left: Element, right: Element) -> int | None:
    if not isinstance(left, int) or not isinstance(right, int):
        return None
    if op_type == "onnx::Div":
        return left // right if left >= 0 and right > 0 else None
    made = {"onnx::Add": left + right, "onnx::Sub": left - right, "onnx::Mul": left * right}[
        op_type
    ]
    return made if abs(made) <= _LARGEST else None


_READERS: dict[str, Callable[[_Reader, ir.Node], Vector | None]] = {
    ir.CONSTANT: _Reader.constant, "onnx::Shape": _Reader.shape, "onnx::Gather": _Reader.gather,
    "onnx::Concat": _Reader.concat, "onnx::Unsqueeze": _Reader.unsqueeze,
    "onnx::Squeeze": _Reader.squeeze, "onnx::Slice": _Reader.slice, "onnx::Identity": _Reader.same,
    "onnx::Cast": _Reader.cast,
    **dict.fromkeys(("onnx::Add", "onnx::Sub", "onnx::Mul", "onnx::Div"), _Reader.arithmetic),
}  # fmt: skip


def _sizes(value: ir.Value) -> Elements | None:
    """Return the sizes of a tensor, None for those of which nothing is known."""
    desc = value.known_desc
    if desc is None:
        return None
    return tuple(None if is_unknown(size) else size for size in desc.shape)


def _argument(node: ir.Node, name: str) -> Any:
    """Return None where this version of the operator has no such argument."""
    return node.argument(name) if node.has_attr(name) else None
