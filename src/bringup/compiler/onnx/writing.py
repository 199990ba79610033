"""From graphs to protos: what no pass touched as the file said it, the rest anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import onnx

from bringup import ir
from bringup.compiler.onnx import operators
from bringup.compiler.onnx.attributes import Body
from bringup.compiler.onnx.constants import ConstantTensor, as_constant
from bringup.compiler.onnx.nodes import (
    GRAPH_ORIGIN,
    GraphOrigin,
    captures_of,
    inputs_of,
    node_proto,
    origin_of,
)
from bringup.compiler.onnx.opsets import ModelOperators
from bringup.compiler.onnx.types import value_info
from bringup.compiler.onnx.unknown import add_unknown_fields
from bringup.errors import ModelError


class Taken:
    """Names in use in a model: ONNX lets no graph hide a name of the graphs around it."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = set(names)

    def add(self, name: str) -> None:
        self._names.add(name)

    def fresh(self, wanted: str) -> str:
        name, number = wanted or "value", 1
        while name in self._names:
            name = f"{wanted or 'value'}_{number}"
            number += 1
        self._names.add(name)
        return name


def names_in(graph: ir.Graph, outputs: Iterable[str]) -> set[str]:
    """Return the names that files gave to what is still in a graph, and to its outputs."""
    found = set(outputs)
    for node in graph.nodes:
        origin = origin_of(node)
        if origin is not None:
            found.update(origin.names)
    return found


class Names:
    """The names of a graph's values: none `taken` in the model; `reserved` are outputs'."""

    def __init__(self, taken: Taken, constants: dict[int, str], reserved: Iterable[str]) -> None:
        self.taken = taken
        self.constants = dict(constants)
        self._reserved = frozenset(reserved)
        self._given: dict[ir.Value, str] = {}

    def give(self, value: ir.Value, name: str) -> str:
        self._given[value] = name
        self.taken.add(name)
        return name

    def has(self, value: ir.Value) -> bool:
        return value in self._given

    def of(self, value: ir.Value) -> str:
        """Return what a value is called: as the file calls it, else by its node."""
        if value in self._given:
            return self._given[value]
        node = value.node
        if node.op_type == ir.CONSTANT and id(node.payload) in self.constants:
            return self.give(value, self.constants[id(node.payload)])
        origin = origin_of(node)
        name = origin.names[value.index] if origin and value.index < len(origin.names) else ""
        if not name or name in self._reserved:
            name = self.taken.fresh(_base(value))
        return self.give(value, name)

    def written(self) -> dict[str, ir.Value]:
        return {name: value for value, name in self._given.items()}


def _base(value: ir.Value) -> str:
    node = value.node
    held = node.payload.name if isinstance(node.payload, ConstantTensor) else ""
    base = held or node.name
    return base if len(node.outputs) <= 1 else f"{base}_{value.index}"


_FREE_INITIALIZERS_SINCE = 4
"""The first IR version whose initializers need not be inputs of the graph."""
_METADATA_SINCE = 10
"""The first IR version whose nodes have metadata."""
_TRACE = "pkg.torch.onnx.stack_trace"


def taken_names(graph: ir.Graph) -> set[str]:
    """Return all names in use in a graph and those that its nodes call."""
    found = names_in(graph, _output_names(graph))
    for subgraph in graph.get_all_subgraphs():
        found |= taken_names(subgraph)
    return found


def write_graph(graph: ir.Graph) -> Any:
    writer = _Writer(graph, len(graph.inputs), (), Taken(taken_names(graph)), {})
    return writer.graph_proto()


def body_writer(captured: Sequence[str], taken: set[str]) -> Callable[[Body], Any]:
    """Return what writes the graphs of one node, given names of the values around."""

    def write(body: Body) -> Any:
        names = Taken(taken | taken_names(body.graph))
        return _Writer(body.graph, body.formal, captured, names, {}).graph_proto()

    return write


def write_function(graph: ir.Graph) -> Any:
    writer = _Writer(graph, len(graph.inputs), (), Taken(taken_names(graph)), {})
    return writer.function_proto()


def _origin(graph: ir.Graph) -> GraphOrigin | None:
    found = graph.attributes.get(GRAPH_ORIGIN)
    return found if isinstance(found, GraphOrigin) else None


def _output_names(graph: ir.Graph) -> list[str]:
    origin = _origin(graph)
    names = list(origin.outputs) if origin is not None else []
    names += [f"output_{index}" for index in range(len(names), len(graph.outputs))]
    return names[: len(graph.outputs)]


class _Writer:
    """Writes one graph; names and constants are those around it, `captured` its other inputs."""

    def __init__(
        self,
        graph: ir.Graph,
        formal: int,
        captured: Sequence[str],
        taken: Taken,
        constants: dict[int, str],
    ) -> None:
        self._graph = graph
        self._outputs = _output_names(graph)
        self._names = Names(taken, constants, self._outputs)
        self._formal = graph.inputs[:formal]
        for value, name in zip(graph.inputs[formal:], captured, strict=True):
            self._names.give(value, name)
        dialect: object = graph.dialect
        if not isinstance(dialect, ModelOperators):
            raise TypeError(f"graph {graph.name!r} is no graph of ONNX operators")
        self._dialect = dialect
        self._initializers: list[Any] = []
        self._nodes: list[Any] = []
        self._is_function = isinstance(getattr(_origin(graph), "proto", None), onnx.FunctionProto)

    # Protos

    def graph_proto(self) -> Any:
        proto = onnx.GraphProto()
        origin = _origin(self._graph)
        if origin is not None:
            kept = onnx.GraphProto()
            for name in ("name", "doc_string"):
                if origin.proto.HasField(name):
                    setattr(kept, name, getattr(origin.proto, name))
            kept.metadata_props.extend(origin.proto.metadata_props)
            add_unknown_fields(kept, origin.proto)
            proto.CopyFrom(kept)
        else:
            proto.name = self._graph.name
        self._write()
        proto.input.extend(self._input_info(value) for value in self._formal)
        proto.output.extend(self._output_infos())
        proto.node.extend(self._nodes)
        self._add_initializers(proto, origin)
        infos, annotations = self._kept_infos(origin)
        proto.value_info.extend(infos)
        proto.quantization_annotation.extend(annotations)
        return proto

    def function_proto(self) -> Any:
        origin = _origin(self._graph)
        assert origin is not None, "functions come from files"
        proto = onnx.FunctionProto()
        proto.CopyFrom(origin.proto)
        for field in ("node", "value_info", "input"):
            proto.ClearField(field)
        self._write()
        proto.input.extend(self._names.of(value) for value in self._formal)
        proto.node.extend(self._nodes)
        proto.value_info.extend(self._kept_infos(origin)[0])
        return proto

    # Steps

    def _write(self) -> None:
        graph = self._graph
        late = graph.topological_sort()
        if late is not None:
            node, reason = late
            raise ModelError(f"graph {graph.name!r} cannot be ordered at {node.name!r}: {reason}")
        self._name_inputs()
        missing = self._name_outputs()
        if not self._is_function:
            for node in graph.find(ir.CONSTANT):
                if not (_is_constant_node(node) or self._needs_a_node(node)):
                    self._initializer(node)
        for node in graph.nodes:
            if node.op_type == ir.CONSTANT:
                self._constant_node(node)
            elif node.op_type not in (ir.INPUT, ir.OUTPUT):
                self._node(node)
        for value, name in missing:
            self._nodes.append(self._identity(self._names.of(value), name))

    def _name_inputs(self) -> None:
        results = dict(zip(self._outputs, self._graph.outputs, strict=True))
        for value in self._formal:
            origin = origin_of(value.node)
            name = origin.names[0] if origin is not None else self._names.of(value)
            if results.get(name, value) is not value:
                raise ModelError(
                    f"graph {self._graph.name!r} has an input and a result named {name!r}, which "
                    "are not the same any more"
                )
            self._names.give(value, name)

    def _name_outputs(self) -> list[tuple[ir.Value, str]]:
        """Give the results their names; returns those that an Identity must compute."""
        missing = []
        for value, name in zip(self._graph.outputs, self._outputs, strict=True):
            origin = origin_of(value.node)
            own = origin.names[value.index] if origin is not None else ""
            is_named = self._names.has(value) and self._names.of(value) != name
            is_fixed = own != name and value.node.op_type in (ir.INPUT, ir.CONSTANT)
            if is_named or is_fixed:
                missing.append((value, name))
            else:
                self._names.give(value, name)
        return missing

    def _identity(self, source: str, target: str) -> Any:
        name = self._names.taken.fresh(f"Identity_{target}")
        return onnx.NodeProto(op_type="Identity", name=name, input=[source], output=[target])

    def _name_constant(self, node: ir.Node) -> str:
        """Return the name of a constant that is to be written now; "" for another one."""
        payload = node.payload
        if id(payload) in self._names.constants or (not node.users and origin_of(node) is None):
            return ""
        name = self._names.constants[id(payload)] = self._names.of(node.output)
        return name

    def _initializer(self, node: ir.Node) -> None:
        if name := self._name_constant(node):
            self._initializers.append(_named_tensor(as_constant(node.payload), name))

    def _needs_a_node(self, node: ir.Node) -> bool:
        """Return whether a constant needs a node: in old models initializers are inputs."""
        return origin_of(node) is None and self._dialect.ir_version < _FREE_INITIALIZERS_SINCE

    def _constant_node(self, node: ir.Node) -> None:
        payload, name = node.payload, self._name_constant(node)
        if not name:
            return
        source = payload.source if isinstance(payload, ConstantTensor) else None
        proto = onnx.NodeProto(op_type="Constant", name=node.name)
        if source is not None:
            proto.CopyFrom(source)
            del proto.output[:]
        else:
            tensor = _named_tensor(as_constant(payload), "")
            is_sparse = isinstance(tensor, onnx.SparseTensorProto)
            proto.attribute.append(
                onnx.helper.make_attribute("sparse_value" if is_sparse else "value", tensor)
            )
        proto.output.append(name)
        self._nodes.append(proto)

    def _node(self, node: ir.Node) -> None:
        reason = operators.absent_reason(node.operator)
        if reason is not None:
            rule = node.meta.get("rule")
            by = f", made by {rule!r}," if rule else ""
            raise ModelError(f"{node.name!r}{by} cannot be written: {reason}")
        signature = self._dialect.signature_of(node.operator)
        names = self._names
        inputs = ["" if value is None else names.of(value) for value in inputs_of(node, signature)]
        captured = [names.of(value) for value in captures_of(node)]
        outputs = [self._output_name(value) for value in node.outputs]

        def write_body(body: Body) -> Any:
            return _Writer(
                body.graph, body.formal, captured, names.taken, names.constants
            ).graph_proto()

        proto = node_proto(node, signature, inputs, outputs, write_body)
        if origin_of(node) is None:
            self._add_metadata(proto, node)
        self._nodes.append(proto)

    def _output_name(self, value: ir.Value) -> str:
        """Return an output's name; "" where the file omits it and it has no reader now."""
        origin = origin_of(value.node)
        left_out = origin is not None and not origin.names[value.index]
        return "" if left_out and not value.users else self._names.of(value)

    def _add_metadata(self, proto: Any, node: ir.Node) -> None:
        if self._dialect.ir_version < _METADATA_SINCE:
            return
        facts = {"bringup.rule": "rule", "bringup.replaces": "replaces", _TRACE: "stack_trace"}
        for key, entry in facts.items():
            found = node.meta.get(entry)
            if found:
                text = ", ".join(found) if isinstance(found, tuple) else str(found)
                proto.metadata_props.add(key=key, value=text)

    # What a graph says of its values

    def _input_info(self, value: ir.Value) -> Any:
        origin = origin_of(value.node)
        if origin is not None and origin.proto is not None:
            return origin.proto
        return self._info(value, self._names.of(value))

    def _output_infos(self) -> list[Any]:
        origin = _origin(self._graph)
        stated = {info.name: info for info in origin.proto.output} if origin is not None else {}
        pairs = zip(self._graph.outputs, self._outputs, strict=True)
        return [stated.get(name) or self._info(value, name) for value, name in pairs]

    def _info(self, value: ir.Value, name: str) -> Any:
        return value_info(name, value.meta if value.meta is not None else value.known_desc)

    def _add_initializers(self, proto: Any, origin: GraphOrigin | None) -> None:
        if origin is not None:  # the values of inputs that may be left out
            inputs = {info.name for info in origin.proto.input}
            kept = [*origin.proto.initializer, *origin.proto.sparse_initializer]
            self._initializers[:0] = [item for item in kept if _tensor_name(item) in inputs]
        for tensor in self._initializers:
            if isinstance(tensor, onnx.SparseTensorProto):
                proto.sparse_initializer.append(tensor)
            else:
                proto.initializer.append(tensor)

    def _kept_infos(self, origin: GraphOrigin | None) -> tuple[list[Any], list[Any]]:
        """Return descriptions of values that remain, those of new ones, and annotations."""
        written = self._names.written()
        infos = [] if origin is None else [*origin.proto.value_info]
        new = {name: value for name, value in written.items() if origin_of(value.node) is None}
        infos = [info for info in infos if info.name in written and info.name not in new]
        for name, value in new.items():
            is_computed = value.node.op_type not in (ir.INPUT, ir.CONSTANT)
            if is_computed and name not in self._outputs and value.meta is not None:
                infos.append(self._info(value, name))
        if origin is None or self._is_function:
            return infos, []
        present = {*written, *self._outputs}
        annotations = origin.proto.quantization_annotation
        return infos, [item for item in annotations if item.tensor_name in present]


def _is_constant_node(node: ir.Node) -> bool:
    return isinstance(node.payload, ConstantTensor) and node.payload.source is not None


def _tensor_name(tensor: Any) -> str:
    return str(tensor.name if isinstance(tensor, onnx.TensorProto) else tensor.values.name)


def _named_tensor(constant: ConstantTensor, name: str) -> Any:
    """Return the proto of a constant under this name; itself where it has it."""
    if _tensor_name(constant.proto) == name:
        return constant.proto
    tensor = type(constant.proto)()
    tensor.CopyFrom(constant.proto)
    if constant.is_sparse:
        tensor.values.name = name
    else:
        tensor.name = name
    return tensor
