"""Casts that change nothing, casts of casts, and casts of tensors that hold one number."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import onnx

from bringup import ir
from bringup.compiler.onnx.attributes import ProtoValue
from bringup.compiler.onnx.constants import ConstantTensor
from bringup.compiler.onnx.library.facts import attribute, dtype_of, known, nodes_behind, require
from bringup.compiler.onnx.library.node_pass import NodePass
from bringup.compiler.onnx.types import dtype_name

_INTEGERS = {
    **{f"int{bits}": (bits - 1, True) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (bits, False) for bits in (8, 16, 32, 64)},
}
"""Bits of a number, and whether there are negative ones."""
_FLOATS = {"float16": (11, 5), "bfloat16": (8, 8), "float32": (24, 8), "float64": (53, 11)}
"""Bits of the digits and of the exponent."""
_SINCE_NINE = frozenset({"bool", "float16", "float32", "float64", *_INTEGERS})
"""What `ConstantOfShape` makes in every version that has it."""


class MergeCasts(NodePass):
    """A `Cast` to the dtype there is; two of them, the first without loss (`int64 -> float32 ->
    float16` rounds twice); one behind `ConstantOfShape`.
    """

    rules: ClassVar = {"Cast": "cast"}

    def cast(self, node: ir.Node) -> ir.Value:
        source, number = node.inputs[0], attribute(node, "to")
        require(isinstance(number, int), "before version 6 dtypes are text")
        target = dtype_name(number)
        first = dtype_of(source)
        if first == target:
            return source
        filled = nodes_behind(source, "onnx::ConstantOfShape")
        if filled is not None:
            return self._filled(node, filled, target)
        inner = known(
            nodes_behind(source, "onnx::Cast"), "it casts neither a cast nor a tensor of one number"
        )
        origin = inner.inputs[0]
        before = known(dtype_of(origin), "the dtype of the source is not known")
        between = dtype_name(attribute(inner, "to"))
        lost = f"{before} to {between} to {target} may be another number than {before} to {target}"
        require(_may_skip(before, between, target), lost)
        if before == target:
            return origin
        return self.made(node, "Cast", origin, to=number)

    def _filled(self, node: ir.Node, filled: ir.Node, target: str) -> ir.Value:
        require(target in _SINCE_NINE, f"ConstantOfShape makes no {target} in every version")
        stated = attribute(filled, "value")
        if isinstance(stated, ProtoValue):
            value = ConstantTensor(stated.proto).numpy().reshape(1)
        else:
            value = np.zeros(1, np.float32)
        number = attribute(node, "to")
        cast = _exactly(value, onnx.helper.tensor_dtype_to_np_dtype(number))
        require(cast is not None, f"{value[0]} is no {target}")
        return self.made(node, "ConstantOfShape", filled.inputs[0], value=cast)


def _may_skip(first: str, between: str, last: str) -> bool:
    """Return whether first -> last is the same as first -> between -> last."""
    if not _contains(between, first):
        return False
    if last == first:
        return True
    if last in _FLOATS or last == "bool":
        return True
    if last not in _INTEGERS:
        return False  # text, and floats of 8 bits that saturate
    if first in _FLOATS:
        return False  # what is out of range is not defined, and differs
    return between in _INTEGERS or _contains(last, first)


def _contains(larger: str, smaller: str) -> bool:
    """Return whether every number of one dtype is one of another."""
    known = {"bool", *_INTEGERS, *_FLOATS}
    if larger not in known or smaller not in known or larger == "bool":
        return larger == smaller and larger in known
    if smaller == "bool":
        return True
    if smaller in _FLOATS:
        if larger not in _FLOATS:
            return False
        return all(
            have >= need for have, need in zip(_FLOATS[larger], _FLOATS[smaller], strict=True)
        )
    bits, signed = _INTEGERS[smaller]
    if larger in _INTEGERS:
        room, negative = _INTEGERS[larger]
        return room >= bits and (negative or not signed)
    digits, exponent = _FLOATS[larger]
    return digits >= bits and 2 ** (exponent - 1) > bits


def _exactly(value: Any, dtype: Any) -> Any:
    """Return one element in another dtype; None if it is another number there."""
    if value.dtype.kind not in "biuf":
        return None
    if np.dtype(dtype) == np.bool_:
        return value != 0
    with np.errstate(all="ignore"):
        cast = value.astype(dtype)
        back = cast.astype(value.dtype)
    if np.array_equal(back, value):
        return cast
    is_rounded = value.dtype.kind == "f" and cast.dtype.kind == "f" and cast.itemsize <= 8
    return cast if is_rounded else None
