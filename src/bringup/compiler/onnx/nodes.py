"""Nodes of a graph as node protos: a new one, or what the file said with what changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from bringup import ir
from bringup.compiler.onnx.attributes import (
    AttributeReference,
    Body,
    bodies_of,
    guessed_kind,
    write_attribute,
)
from bringup.compiler.onnx.operators import CAPTURES, Signature, domain_of
from bringup.ir.node import values_in

GRAPH_ORIGIN = "onnx"
"""The attribute of a graph that says where in a file it comes from."""
ORIGIN = "onnx"
"""The entry of `Node.meta` that says where in a file a node comes from."""

WriteBody = Callable[[Body], Any]


@dataclass(frozen=True)
class GraphOrigin:
    """What a file says about a graph: its proto, by reference, and what the results are called."""

    proto: Any
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Origin:
    """What a file says about a node: its proto, by reference, and its outputs' names."""

    names: tuple[str, ...]
    proto: Any
    attributes: tuple[object, ...] = ()


def origin_of(node: ir.Node) -> Origin | None:
    """Return where in a file a node comes from; None for one that a pass made."""
    found = node.meta.get(ORIGIN)
    return found if isinstance(found, Origin) else None


def captures_of(node: ir.Node) -> tuple[ir.Value, ...]:
    """Return the values that the graphs which a node calls read of the graph around them."""
    parameters = node.operator.parameters
    if not parameters or parameters[-1].name != CAPTURES:
        return ()
    return tuple(values_in(node.arguments[-1]))


def inputs_of(node: ir.Node, signature: Signature | None) -> list[ir.Value | None]:
    """Return a node proto's inputs, None for absent ones but those at the end."""
    count = 1 if signature is None else len(signature.inputs)
    found: list[ir.Value | None] = []
    for argument in node.arguments[:count]:
        if isinstance(argument, (tuple, list)):
            found.extend(item if isinstance(item, ir.Value) else None for item in argument)
        else:
            found.append(argument if isinstance(argument, ir.Value) else None)
    while found and found[-1] is None:
        found.pop()
    return found


def attributes_of(node: ir.Node, signature: Signature | None) -> tuple[object, ...]:
    """Return the arguments that are attributes."""
    if signature is None:
        return node.arguments[1:2]
    count = len(signature.inputs)
    return node.arguments[count : count + len(signature.attributes)]


def node_proto(
    node: ir.Node,
    signature: Signature | None,
    inputs: Sequence[str],
    outputs: Sequence[str],
    write_body: WriteBody,
) -> Any:
    """Return the `onnx.NodeProto` of an operator; the name "" stands for an absent value."""
    proto = onnx.NodeProto()
    origin = origin_of(node)
    attributes = attributes_of(node, signature)
    if origin is None:
        proto.domain, proto.op_type = domain_of(node.op_type)
        proto.name = node.name
        _write_all(proto, attributes, signature, write_body)
    else:
        proto.CopyFrom(origin.proto)
        del proto.input[:]
        del proto.output[:]
        if attributes != origin.attributes or bodies_of(node):
            _write_changed(proto, attributes, origin.attributes, signature, write_body)
        stated = origin.proto.input
        if stated and not stated[-1]:  # it lists absent ones at the end
            inputs = [*inputs, *[""] * (len(stated) - len(inputs))]
    proto.input.extend(inputs)
    proto.output.extend(outputs)
    return proto


def _write_all(
    proto: Any, attributes: tuple[object, ...], signature: Signature | None, write_body: WriteBody
) -> None:
    for name, kind, value, default in _named(attributes, signature):
        if value is not None and value != default:
            write_attribute(proto.attribute.add(), name, kind, value, write_body)


def _write_changed(
    proto: Any,
    attributes: tuple[object, ...],
    before: tuple[object, ...],
    signature: Signature | None,
    write_body: WriteBody,
) -> None:
    """Exchange those attributes that differ from what the file said, and the graphs."""
    stated = {attribute.name: attribute for attribute in proto.attribute}
    former = {name: value for name, _, value, _ in _named(before, signature)}
    for name, kind, value, default in _named(attributes, signature):
        changed = name not in former or value != former[name]
        if not (changed or (name in stated and _has_bodies(value))):
            continue
        attribute = stated.get(name)
        if value is None or (value == default and attribute is None):
            if attribute is not None:
                proto.attribute.remove(attribute)
            continue
        if attribute is None:
            attribute = proto.attribute.add()
        document = attribute.doc_string
        attribute.Clear()
        write_attribute(attribute, name, kind, value, write_body)
        if document:
            attribute.doc_string = document
    if signature is None:
        gone = former.keys() - {name for name, *_ in _named(attributes, signature)}
        for name in gone:
            proto.attribute.remove(stated[name])


def _has_bodies(value: object) -> bool:
    items = value if isinstance(value, tuple) else (value,)
    return any(isinstance(item, Body) for item in items)


def _named(
    attributes: tuple[object, ...], signature: Signature | None
) -> list[tuple[str, int, object, object]]:
    """Name, kind, value and default of every attribute."""
    if signature is not None:
        return [
            (slot.attribute, _kind(slot.kind, value), value, slot.default)
            for slot, value in zip(signature.attributes, attributes, strict=True)
        ]
    (named,) = attributes
    assert isinstance(named, dict), "foreign_arguments() made it a dict"
    return [(name, guessed_kind(value), value, None) for name, value in named.items()]


def _kind(kind: int, value: object) -> int:
    return value.kind if isinstance(value, AttributeReference) else kind
