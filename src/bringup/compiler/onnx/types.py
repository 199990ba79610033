"""What values of an ONNX graph look like: type protos as descriptions, and back.

A tensor of known rank is described by an `ir.TensorDesc`; a size without number and name gets a
name that starts with `?` and stands for nothing else. Anything else is an `OtherType`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx

from bringup import ir

_SPECIAL = {
    "FLOAT": "float32", "DOUBLE": "float64", "FLOAT8E4M3FN": "float8_e4m3fn",
    "FLOAT8E4M3FNUZ": "float8_e4m3fnuz", "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E5M2FNUZ": "float8_e5m2fnuz", "FLOAT8E8M0": "float8_e8m0fnu",
    "FLOAT4E2M1": "float4_e2m1fn",
}  # fmt: skip
_NAMES: dict[int, str] = {
    number: _SPECIAL.get(name, name.lower())
    for name, number in onnx.TensorProto.DataType.items()
    if name != "UNDEFINED"
}
_NUMBERS = {name: number for number, name in _NAMES.items()}
_FRESH = itertools.count()


@dataclass(frozen=True)
class OtherType:
    """The type of a value that is no dense tensor of known rank: a sequence, a map, ..."""

    proto: bytes

    def decoded(self) -> Any:
        found = onnx.TypeProto()
        found.ParseFromString(self.proto)
        return found

    def __str__(self) -> str:
        return _type_text(self.decoded())


def dtype_name(number: int) -> str:
    """Return the dtype of a `TensorProto.DataType`; `ValueError` for one that does not exist."""
    if number not in _NAMES:
        raise ValueError(f"ONNX has no tensor element type {number}")
    return _NAMES[number]


def dtype_number(name: str) -> int:
    """Return the `TensorProto.DataType` of a dtype; `ValueError` when ONNX has none for it."""
    if name not in _NUMBERS:
        raise ValueError(f"ONNX has no tensor element type {name!r}; it has {sorted(_NUMBERS)}")
    return _NUMBERS[name]


def is_unknown(dim: ir.Dim) -> bool:
    """Return whether nothing is known of a size; onnx names such sizes `unk__<number>`."""
    return not isinstance(dim, int) and str(dim).startswith(("?", "unk__"))


def look_of(proto: Any) -> object:
    """Return the description of a type proto; None when it says nothing."""
    kind = proto.WhichOneof("value")
    if kind is None:
        return None
    if kind != "tensor_type":
        return OtherType(proto.SerializeToString(deterministic=True))
    tensor = proto.tensor_type
    if tensor.elem_type not in _NAMES:
        return None
    if not tensor.HasField("shape"):
        bare = onnx.TypeProto()
        bare.tensor_type.elem_type = tensor.elem_type
        return OtherType(bare.SerializeToString(deterministic=True))
    return ir.TensorDesc(
        ir.Shape(tuple(_dim(dim) for dim in tensor.shape.dim)), _NAMES[tensor.elem_type]
    )


def _dim(proto: Any) -> ir.DimLike:
    kind = proto.WhichOneof("value")
    if kind == "dim_value":
        return int(proto.dim_value)
    named = str(proto.dim_param) if kind == "dim_param" else ""
    return named or unknown_size()


def unknown_size() -> str:
    """Return a name for a size of which nothing is known, which nothing else has."""
    return f"?{next(_FRESH)}"


def type_proto(look: object) -> Any:
    if isinstance(look, OtherType):
        return look.decoded()
    proto = onnx.TypeProto()
    if not isinstance(look, ir.TensorDesc):
        return proto
    proto.tensor_type.elem_type = dtype_number(look.dtype)
    proto.tensor_type.shape.SetInParent()
    for dim in look.shape:
        added = proto.tensor_type.shape.dim.add()
        if isinstance(dim, int):
            added.dim_value = dim
        elif not is_unknown(dim):
            added.dim_param = str(dim)
    return proto


def value_info(name: str, look: object) -> Any:
    info = onnx.ValueInfoProto(name=name)
    if look is not None:
        info.type.CopyFrom(type_proto(look))
    return info


def joined(one: object, other: object) -> object:
    """Return what two descriptions of the same value say together; None when they contradict each
    other.

    Names of sizes are hints: exporters and people give one size several, so that two names never
    contradict each other, nor a name a number. Of two names the first one's stays.
    """
    if isinstance(one, ir.TensorDesc) and isinstance(other, ir.TensorDesc):
        return _joined_tensors(one, other)
    if one == other:
        return one
    left, right = type_proto(one), type_proto(other)
    if _without_shapes(left) != _without_shapes(right):
        return None
    return one if isinstance(one, ir.TensorDesc) else other


def _joined_tensors(one: ir.TensorDesc, other: ir.TensorDesc) -> ir.TensorDesc | None:
    if one.dtype != other.dtype or len(one.shape) != len(other.shape):
        return None
    dims = []
    for left, right in zip(one.shape, other.shape, strict=True):
        if isinstance(left, int) and isinstance(right, int) and left != right:
            return None
        dims.append(right if isinstance(right, int) or is_unknown(left) else left)
    return ir.TensorDesc(ir.Shape(tuple(dims)), one.dtype)


def _without_shapes(proto: Any) -> Any:
    """Return the type without what it says of shapes, in place."""
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        getattr(proto, kind).ClearField("shape")
    elif kind in ("sequence_type", "optional_type"):
        _without_shapes(getattr(proto, kind).elem_type)
    elif kind == "map_type":
        _without_shapes(proto.map_type.value_type)
    return proto


def _type_text(proto: Any) -> str:
    kind = proto.WhichOneof("value")
    inner: dict[str, Callable[[], str]] = {
        "sequence_type": lambda: f"sequence({_type_text(proto.sequence_type.elem_type)})",
        "optional_type": lambda: f"optional({_type_text(proto.optional_type.elem_type)})",
        "map_type": lambda: f"map({_type_text(proto.map_type.value_type)})",
        "sparse_tensor_type": lambda: "sparse tensor",
        "tensor_type": lambda: str(
            look_of(proto)
            if proto.tensor_type.HasField("shape")
            else f"{_NAMES.get(proto.tensor_type.elem_type, '?')}[...]"
        ),
    }
    return inner[kind]() if kind in inner else "unknown"
