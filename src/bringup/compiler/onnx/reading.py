"""From protos to graphs: nodes in order, the graphs that nodes call, what those read outside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from bringup import ir
from bringup.compiler.onnx import operators
from bringup.compiler.onnx.attributes import Body, attribute_kind, value_of
from bringup.compiler.onnx.constants import ConstantTensor
from bringup.compiler.onnx.dialect import IMPORTS, OnnxDialect
from bringup.compiler.onnx.nodes import GRAPH_ORIGIN, ORIGIN, GraphOrigin, Origin
from bringup.compiler.onnx.operators import Signature
from bringup.compiler.onnx.types import is_unknown, look_of
from bringup.errors import ModelError, SchemaError

_TRACE = "pkg.torch.onnx.stack_trace"
_VALUES = {
    "value": lambda attribute: attribute.t,
    "sparse_value": lambda attribute: attribute.sparse_tensor,
}


@dataclass
class _Scope:
    """The names that one graph knows, and the graph around it."""

    graph: ir.Graph
    around: _Scope | None
    values: dict[str, ir.Value] = field(default_factory=dict)
    looks: Mapping[str, Any] = field(default_factory=dict)
    known: dict[bytes, object] = field(default_factory=dict)  # looks by their types

    def define(self, name: str, value: ir.Value) -> None:
        if not name:
            return
        if name in self.values:
            raise ModelError(
                f"graph {self.graph.name!r} defines {name!r} twice: by "
                f"{self.values[name].node.name!r} and by {value.node.name!r}"
            )
        self.values[name] = value

    def read(self, name: str, reader: str) -> ir.Value:
        found = self.values.get(name)
        if found is None:
            raise ModelError(
                f"{reader} of graph {self.graph.name!r} reads {name!r}, which nothing before it "
                "defines"
            )
        return found

    def look(self, name: str) -> object:
        info = self.looks.get(name)
        if info is None:
            return None
        key = info.type.SerializeToString()
        look = self.known.get(key)
        if look is None:
            look = look_of(info.type)
            # An unknown size equals no other size.
            if not (isinstance(look, ir.TensorDesc) and any(map(is_unknown, look.shape))):
                self.known[key] = look
        return look


def read_graph(proto: Any, dialect: OnnxDialect, folder: Path | None) -> ir.Graph:
    reader = _Reader(dialect, folder)
    graph = reader.graph(proto, proto.name or "main", None, ())
    graph.set_attr(IMPORTS, dict(dialect.opsets))
    return graph


def read_function(proto: Any, dialect: OnnxDialect) -> ir.Graph:
    name = operators.type_of(proto.domain, proto.name, proto.overload)
    scope = _scope_of(proto, name, dialect, None)
    for item in proto.input:
        value = scope.graph.add_input(item, scope.look(item))
        value.node.meta[ORIGIN] = Origin((item,), None)
        scope.define(item, value)
    reader = _Reader(dialect, None)
    reader.nodes(proto.node, scope)
    reader.finish(scope, proto, list(proto.output))
    scope.graph.set_attr(IMPORTS, dict(dialect.opsets))
    return scope.graph


def _scope_of(proto: Any, name: str, dialect: OnnxDialect, around: _Scope | None) -> _Scope:
    infos = [*proto.value_info]
    if isinstance(proto, onnx.GraphProto):
        infos += proto.output
    return _Scope(
        ir.Graph(name, dialect), around, looks={info.name: info for info in infos if info.name}
    )


class _Reader:
    """Reads one graph and those that its nodes call."""

    def __init__(self, dialect: OnnxDialect, folder: Path | None) -> None:
        self._dialect = dialect
        self._folder = folder
        self._free: dict[int, tuple[Any, tuple[str, ...]]] = {}

    def graph(
        self, proto: Any, name: str, around: _Scope | None, captured: Sequence[str]
    ) -> ir.Graph:
        """Return a graph whose inputs are its own and then the `captured` values around it."""
        scope = _scope_of(proto, name, self._dialect, around)
        graph = scope.graph
        for info in proto.input:
            value = graph.add_input(info.name, look_of(info.type))
            value.node.meta[ORIGIN] = Origin((info.name,), info)
            scope.define(info.name, value)
        for item in captured:
            self._capture(item, scope)
        self._initializers(proto, scope)
        self.nodes(proto.node, scope)
        self.finish(scope, proto, [info.name for info in proto.output])
        return graph

    def _capture(self, name: str, scope: _Scope) -> None:
        assert scope.around is not None, "only the graph of a node captures"
        outer = scope.around.values[name]
        if outer.node.op_type == ir.CONSTANT:  # one payload, known in both graphs
            inner = scope.graph.add_constant(outer.node.payload, name=outer.node.name)
        else:
            inner = scope.graph.add_input(name, outer.meta)
        scope.values[name] = inner

    def _initializers(self, proto: Any, scope: _Scope) -> None:
        defaults = {info.name for info in proto.input}
        for tensor in [*proto.initializer, *proto.sparse_initializer]:
            name = tensor.name if isinstance(tensor, onnx.TensorProto) else tensor.values.name
            if name not in defaults:  # else an input that may be left out
                payload = self._constant(tensor, f"initializer {name!r}", scope)
                self._add_constant(scope, payload, name, name, tensor)

    def _constant(self, tensor: Any, where: str, scope: _Scope, source: Any = None) -> Any:
        try:
            return ConstantTensor(tensor, self._folder, source)
        except ValueError as error:
            raise ModelError(f"{where} of graph {scope.graph.name!r}: {error}") from error

    def _add_constant(
        self, scope: _Scope, payload: Any, name: str, node_name: str, proto: Any
    ) -> None:
        graph = scope.graph
        value = graph.add_constant(payload, name=node_name, before=graph.output_node)
        value.node.meta[ORIGIN] = Origin((name,), proto)
        scope.define(name, value)

    def finish(self, scope: _Scope, proto: Any, outputs: list[str]) -> None:
        """Return the results, and keep what passes do not see."""
        graph = scope.graph
        graph.set_outputs(*(scope.read(name, f"the output {name!r}") for name in outputs))
        graph.set_attr(GRAPH_ORIGIN, GraphOrigin(proto, tuple(outputs)))
        graph.shapes_pending = True

    # Nodes

    def nodes(self, protos: Iterable[Any], scope: _Scope) -> None:
        """Yield all nodes in order, each behind those that it reads from."""
        for proto in self._sorted(list(protos)):
            try:
                self._node(proto, scope)
            except SchemaError as error:
                where = f"{proto.name or next(iter(proto.output), '')!r} ({proto.op_type})"
                raise ModelError(
                    f"node {where} of graph {scope.graph.name!r} does not fit its operator: {error}"
                ) from error

    def _sorted(self, protos: list[Any]) -> list[Any]:
        """Return the nodes behind what they read from; what cannot be sorted stays as it is."""
        makers = {name: at for at, proto in enumerate(protos) for name in proto.output if name}
        reads = [
            [makers[name] for name in self._read_names(proto) if name in makers] for proto in protos
        ]
        if all(maker < at for at, found in enumerate(reads) for maker in found):
            return protos
        order: dict[int, None] = {}
        for first in range(len(protos)):
            agenda, opened = [first], set[int]()
            while agenda:
                at = agenda[-1]
                waiting = [one for one in reads[at] if one not in order and one not in opened]
                if at in opened or not waiting:
                    order.setdefault(agenda.pop())
                    continue
                opened.add(at)
                agenda.extend(reversed(waiting))
        return [protos[at] for at in order]

    def _read_names(self, proto: Any) -> Iterator[str]:
        yield from proto.input
        for graph in _graphs_of(proto):
            yield from self._free_names(graph)

    def _node(self, proto: Any, scope: _Scope) -> None:
        payload = self._constant_of(proto, scope)
        label = proto.name or next((name for name in proto.output if name), proto.op_type)
        if payload is not None:
            self._add_constant(scope, payload, proto.output[0], label, proto)
            return
        reader = f"node {label!r} ({proto.op_type})"
        inputs = [scope.read(name, reader) if name else None for name in proto.input]
        captured = self._captured(proto, scope, reader)
        captures = [scope.read(name, reader) for name in captured]
        captures = [value for value in captures if value.node.op_type != ir.CONSTANT]
        attributes, bodies = self._attributes(proto, f"{scope.graph.name}/{label}", scope, captured)
        operator, arguments, own = self._bound(proto, inputs, attributes, captures)
        metas = tuple(scope.look(name) if name else None for name in proto.output)
        node = scope.graph.insert_as_is(operator, arguments, metas, label)
        node.meta[ORIGIN] = Origin(tuple(proto.output), proto, own)
        trace = next((item.value for item in proto.metadata_props if item.key == _TRACE), None)
        if trace is not None:
            node.meta["stack_trace"] = trace
        for name, value in zip(proto.output, node.outputs, strict=True):
            scope.define(name, value)
        for body in bodies:
            scope.graph.add_subgraph(_free_name(scope.graph, body.graph.name), body.graph, node)

    def _attributes(
        self, proto: Any, path: str, scope: _Scope, captured: Sequence[str]
    ) -> tuple[dict[str, object], list[Body]]:
        bodies: list[Body] = []

        def body(name: str, inner: Any) -> Body:
            bodies.append(Body(self.graph(inner, name, scope, captured), len(inner.input)))
            return bodies[-1]

        found = {
            attribute.name: value_of(attribute, partial(body, f"{path}.{attribute.name}"))
            for attribute in proto.attribute
        }
        return found, bodies

    def _constant_of(self, proto: Any, scope: _Scope) -> Any:
        if proto.op_type != "Constant" or proto.domain not in ("", "ai.onnx"):
            return None
        if len(proto.attribute) != 1 or proto.attribute[0].ref_attr_name or len(proto.output) != 1:
            return None
        attribute = proto.attribute[0]
        where = f"constant {proto.output[0]!r}"
        if attribute.name in _VALUES:
            held = _VALUES[attribute.name](attribute)
            return self._constant(held, where, scope, proto)
        held = _tensor_of_numbers(attribute)
        return None if held is None else self._constant(held, where, scope, proto)

    def _bound(
        self,
        proto: Any,
        inputs: Sequence[ir.Value | None],
        attributes: dict[str, object],
        captures: Sequence[ir.Value],
    ) -> tuple[ir.Operator, tuple[object, ...], tuple[object, ...]]:
        """Return the operator of a node, all arguments, and those of them that are attributes."""
        op_type = operators.type_of(proto.domain, proto.op_type, proto.overload)
        count = len(proto.output)
        is_function = self._dialect.function_of(op_type) is not None
        operator = operators.foreign(op_type)
        signature = None if is_function else self._dialect.signature_of(operator)
        if signature is None:
            bound = operators.foreign_arguments([tuple(inputs)], attributes)
            arguments = (*bound[:2], tuple(captures))
            return operators.with_outputs(operator, count), arguments, arguments[1:2]
        kept = {name: value for name, value in attributes.items() if not name.startswith("__")}
        named = _by_parameter(signature, kept, proto)
        if signature.has_bodies:
            named[operators.CAPTURES] = tuple(captures)
        given = [*inputs]
        while given and given[-1] is None:
            given.pop()
        arguments = signature.bound(given, named)
        first = len(signature.inputs)
        own = arguments[first : first + len(signature.attributes)]
        return operators.with_outputs(signature.operator, count), arguments, own

    # What the graphs of a node read around them

    def _captured(self, proto: Any, scope: _Scope, reader: str) -> list[str]:
        graphs = list(_graphs_of(proto))
        if not graphs:
            return []
        names = dict.fromkeys(name for graph in graphs for name in self._free_names(graph))
        for name in names:
            if name not in scope.values:
                raise ModelError(
                    f"{reader} of graph {scope.graph.name!r} calls a graph that reads {name!r}, "
                    "which nothing around it defines"
                )
        return list(names)

    def _free_names(self, graph: Any) -> tuple[str, ...]:
        """Return the names that a graph reads and does not define, in the order of reading."""
        known = self._free.get(id(graph))
        if known is not None:
            return known[1]
        defined = {info.name for info in graph.input}
        defined.update(tensor.name for tensor in graph.initializer)
        defined.update(tensor.values.name for tensor in graph.sparse_initializer)
        defined.update(name for node in graph.node for name in node.output)
        read: dict[str, None] = {}
        for node in graph.node:
            read.update(dict.fromkeys(name for name in node.input if name))
            for inner in _graphs_of(node):
                read.update(dict.fromkeys(self._free_names(inner)))
        read.update(dict.fromkeys(info.name for info in graph.output))
        found = tuple(name for name in read if name not in defined)
        self._free[id(graph)] = (graph, found)  # the graph is kept, so its id stays its own
        return found


def _graphs_of(proto: Any) -> Iterator[Any]:
    for attribute in proto.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _by_parameter(
    signature: Signature, attributes: dict[str, object], proto: Any
) -> dict[str, object]:
    """Return attributes by parameter; raises `SchemaError` for a wrong type."""
    kinds = {slot.attribute: slot for slot in signature.attributes}
    for attribute in proto.attribute:
        slot = kinds.get(attribute.name)
        is_list = slot is not None and not (attribute.ref_attr_name or attributes[slot.attribute])
        if slot is None or is_list or attribute_kind(attribute) == slot.kind:
            continue
        names = onnx.AttributeProto.AttributeType.Name
        raise SchemaError(
            f"attribute {attribute.name!r} must be of type {names(slot.kind)}, got "
            f"{names(attribute_kind(attribute))}"
        )
    return {
        kinds[name].name if name in kinds else name: value for name, value in attributes.items()
    }


def _tensor_of_numbers(attribute: Any) -> Any:
    """Return the tensor of a constant that is given as a number, a text, or a list of these."""
    data = onnx.TensorProto
    forms = {
        "value_float": (data.FLOAT, [attribute.f], ()),
        "value_int": (data.INT64, [attribute.i], ()),
        "value_string": (data.STRING, [attribute.s], ()),
        "value_floats": (data.FLOAT, attribute.floats, (len(attribute.floats),)),
        "value_ints": (data.INT64, attribute.ints, (len(attribute.ints),)),
        "value_strings": (data.STRING, attribute.strings, (len(attribute.strings),)),
    }
    if attribute.name not in forms:
        return None
    kind, items, dims = forms[attribute.name]
    return onnx.helper.make_tensor("", kind, dims, list(items))


def _free_name(graph: ir.Graph, wanted: str) -> str:
    """Return a name that no subgraph of the graph has: nodes of one name may call graphs."""
    name, number = wanted, 1
    while graph.has_subgraph(name):
        number += 1
        name = f"{wanted}#{number}"
    return name
