"""Attributes of ONNX nodes as arguments of nodes, and back."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from bringup import ir
from bringup.compiler.onnx.constants import ConstantTensor
from bringup.errors import SchemaError
from bringup.passes import AnyValue, ArgumentPattern, Constant

_KIND = onnx.AttributeProto
_FIELDS: dict[int, str] = {
    _KIND.FLOAT: "f", _KIND.INT: "i", _KIND.STRING: "s", _KIND.TENSOR: "t", _KIND.GRAPH: "g",
    _KIND.SPARSE_TENSOR: "sparse_tensor", _KIND.TYPE_PROTO: "tp",
}  # fmt: skip
_ITEM_OF: dict[int, int] = {
    getattr(_KIND, f"{_KIND.AttributeType.Name(kind)}S"): kind for kind in _FIELDS
}
"""The kind of the items of each kind of list."""
_FIELDS.update({kind: _KIND.AttributeType.Name(kind).lower() for kind in _ITEM_OF})


@dataclass(frozen=True)
class AttributeReference:
    """In the body of a function: the attribute that the function is called with.

    Attributes:
        name: what the function calls its attribute.
        kind: its type, as `onnx.AttributeProto` numbers them.
    """

    name: str
    kind: int


class Body:
    """A graph that a node calls: a branch, the body of a loop.

    Attributes:
        graph: its inputs are those of the ONNX graph, then what it reads of the graphs around it,
            which the calling node has as its argument `captures`.
        formal: how many inputs are the ONNX graph's own.
    """

    def __init__(self, graph: ir.Graph, formal: int) -> None:
        self.graph = graph
        self.formal = formal

    def __repr__(self) -> str:
        return f"<body {self.graph.name}>"


class ProtoValue:
    """A tensor, sparse tensor or type that is an attribute. Equal by content.

    Args:
        proto: an `onnx.TensorProto`, `onnx.SparseTensorProto` or `onnx.TypeProto`.
    """

    def __init__(self, proto: Any) -> None:
        self.proto = proto
        self._key: tuple[object, ...] | None = None

    def _content(self) -> tuple[object, ...]:
        if self._key is None:
            proto = self.proto
            if isinstance(proto, onnx.TensorProto) and not proto.external_data:
                array = numpy_helper.to_array(proto)
                data = tuple(array.flat) if array.dtype == object else array.tobytes()
                self._key = ("tensor", proto.data_type, tuple(proto.dims), data)
            else:
                self._key = (type(proto).__name__, proto.SerializeToString(deterministic=True))
        return self._key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProtoValue) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash(self._content())

    def __repr__(self) -> str:
        proto = self.proto
        if isinstance(proto, onnx.TensorProto):
            return f"<tensor {ConstantTensor(proto).desc}>"
        return f"<{type(proto).__name__}>"


def round32(number: float) -> float:
    """Return a number as an attribute keeps it: in single precision."""
    try:
        (rounded,) = struct.unpack("<f", struct.pack("<f", number))
    except OverflowError:
        return float(np.float32(number))
    return float(rounded)


def attribute_kind(proto: Any) -> int:
    """Return the type of an attribute; models of the first IR versions do not state it."""
    if proto.type != _KIND.UNDEFINED:
        return int(proto.type)
    for kind, field in _FIELDS.items():
        given = len(getattr(proto, field)) if kind in _ITEM_OF else proto.HasField(field)
        if given:
            return int(kind)
    return int(_KIND.INTS)  # an empty list; of what, nothing says


def value_of(proto: Any, body: Callable[[Any], Body]) -> object:
    """Return the argument that an attribute is; `body` makes the graphs in it."""
    kind = attribute_kind(proto)
    if proto.ref_attr_name:
        return AttributeReference(proto.ref_attr_name, kind)
    if kind not in _FIELDS:
        raise SchemaError(f"attribute {proto.name!r} is of type {kind}, which ONNX does not have")
    given = getattr(proto, _FIELDS[kind])
    if kind in _ITEM_OF:
        item = _ITEM_OF[kind]
        return tuple(_plain(item, one, body) for one in given)
    return _plain(kind, given, body)


def _plain(kind: int, given: Any, body: Callable[[Any], Body]) -> object:
    if kind in (_KIND.FLOAT, _KIND.INT):
        return given
    if kind == _KIND.STRING:
        try:
            return given.decode("utf-8")
        except UnicodeDecodeError:
            return given
    if kind == _KIND.GRAPH:
        return body(given)
    return ProtoValue(given)


def bodies_of(node: ir.Node) -> list[Body]:
    found: list[Body] = []
    agenda: list[object] = [*node.arguments]
    while agenda:
        item = agenda.pop(0)
        if isinstance(item, Body):
            found.append(item)
        elif isinstance(item, (tuple, list)):
            agenda[:0] = item
        elif isinstance(item, dict):
            agenda[:0] = item.values()
    return found


def canonical(where: str, kind: int, given: object) -> object:
    """Return the one form of an attribute's value, or of an open argument for it. Raises
    `SchemaError`, naming `where`, for another `kind` of `AttributeProto.AttributeType`.
    """
    if given is None or isinstance(given, AttributeReference):
        return given
    if isinstance(given, ArgumentPattern):
        return _rounded_pattern(given) if kind in (_KIND.FLOAT, _KIND.FLOATS) else given
    if kind in _ITEM_OF:
        if not isinstance(given, (tuple, list, np.ndarray)):
            raise _type_mismatch(where, kind, given)
        return tuple(canonical(where, _ITEM_OF[kind], item) for item in given)
    found = _CANONICAL[kind](given)
    if found is None:
        raise _type_mismatch(where, kind, given)
    return found


def _type_mismatch(where: str, kind: int, given: object) -> SchemaError:
    wanted = _KIND.AttributeType.Name(kind)
    return SchemaError(f"{where} must be of type {wanted}, got {given!r}")


def _number(given: object) -> float | None:
    if isinstance(given, (bool, int, float, np.integer, np.floating)):
        return round32(float(given))
    return None


def _tensor(given: object) -> object:
    if isinstance(given, onnx.TensorProto):
        return ProtoValue(given)
    if isinstance(given, ir.ConstantData):
        return ProtoValue(ConstantTensor.of_data(given).proto)
    if isinstance(given, (np.ndarray, np.generic)):
        return ProtoValue(ConstantTensor.of_array(given).proto)
    return _wrapped(onnx.TensorProto)(given)


def _wrapped(proto_type: Any) -> Callable[[object], object]:
    def wrap(given: object) -> object:
        if isinstance(given, proto_type):
            return ProtoValue(given)
        fits = isinstance(given, ProtoValue) and isinstance(given.proto, proto_type)
        return given if fits else None

    return wrap


_CANONICAL: dict[int, Callable[[object], object]] = {
    _KIND.FLOAT: _number,
    _KIND.INT: lambda given: int(given) if isinstance(given, (bool, int, np.integer)) else None,
    _KIND.STRING: lambda given: given if isinstance(given, (str, bytes)) else None,
    _KIND.TENSOR: _tensor,
    _KIND.GRAPH: lambda given: given if isinstance(given, Body) else None,
    _KIND.SPARSE_TENSOR: _wrapped(onnx.SparseTensorProto),
    _KIND.TYPE_PROTO: _wrapped(onnx.TypeProto),
}


def _rounded_pattern(item: ArgumentPattern) -> ArgumentPattern:
    """Return an open argument with numbers rounded as attributes are."""
    if isinstance(item, Constant) and item.values:
        return dataclasses.replace(item, values=tuple(round32(value) for value in item.values))
    if isinstance(item, AnyValue) and item.among is not None:
        return dataclasses.replace(item, among=tuple(_rounded(one) for one in item.among))
    return item


def _rounded(item: object) -> object:
    if isinstance(item, (tuple, list)):
        return tuple(_rounded(one) for one in item)
    number = isinstance(item, (int, float)) and not isinstance(item, bool)
    return round32(float(item)) if number else item  # type: ignore[arg-type]


def guessed_kind(value: object) -> int:
    """Return the kind of an attribute without a schema ([] has integers). Raises `SchemaError`."""
    if isinstance(value, AttributeReference):
        return value.kind
    if isinstance(value, (tuple, list)):
        kinds = {guessed_kind(item) for item in value} or {int(_KIND.INT)}
        item = int(_KIND.FLOAT) if kinds == {_KIND.INT, _KIND.FLOAT} else min(kinds)
        many = next((many for many, one in _ITEM_OF.items() if one == item), None)
        if many is not None and (len(kinds) == 1 or item == _KIND.FLOAT):
            return int(many)
    held = value.proto if isinstance(value, ProtoValue) else value
    for types, kind in _GUESSES:
        if isinstance(held, types):
            return kind
    raise SchemaError(f"{value!r} cannot be an attribute of an ONNX node")


_GUESSES: tuple[tuple[Any, int], ...] = (
    ((bool, int, np.integer), int(_KIND.INT)),
    ((float, np.floating), int(_KIND.FLOAT)),
    ((str, bytes), int(_KIND.STRING)),
    ((onnx.TensorProto, np.ndarray, ir.ConstantData), int(_KIND.TENSOR)),
    (onnx.SparseTensorProto, int(_KIND.SPARSE_TENSOR)),
    (onnx.TypeProto, int(_KIND.TYPE_PROTO)),
    (Body, int(_KIND.GRAPH)),
)


def write_attribute(
    proto: Any, name: str, kind: int, value: object, body: Callable[[Body], Any]
) -> None:
    """Make an empty `onnx.AttributeProto` hold a value; `body` writes the graphs in it."""
    proto.name, proto.type = name, kind
    if isinstance(value, AttributeReference):
        proto.ref_attr_name = value.name
        return
    if kind in _ITEM_OF:
        assert isinstance(value, (tuple, list)), "canonical() made it a tuple"
        getattr(proto, _FIELDS[kind]).extend(_written(item, body) for item in value)
        return
    written = _written(value, body)
    if kind in (_KIND.FLOAT, _KIND.INT, _KIND.STRING):
        setattr(proto, _FIELDS[kind], written)
    else:
        getattr(proto, _FIELDS[kind]).CopyFrom(written)


def _written(item: object, body: Callable[[Body], Any]) -> Any:
    if isinstance(item, str):
        return item.encode("utf-8")
    if isinstance(item, Body):
        return body(item)
    return item.proto if isinstance(item, ProtoValue) else item
