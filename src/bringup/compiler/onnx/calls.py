"""One call of an operator as a model of its own: what onnx infers of it, and what it computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, shape_inference

from bringup import ir
from bringup.compiler.onnx.attributes import bodies_of
from bringup.compiler.onnx.constants import ConstantTensor, array_of, as_constant
from bringup.compiler.onnx.nodes import attributes_of, captures_of, inputs_of, node_proto
from bringup.compiler.onnx.operators import Signature, reference_in
from bringup.compiler.onnx.opsets import ModelOperators
from bringup.compiler.onnx.types import is_unknown, look_of, type_proto, value_info
from bringup.compiler.onnx.writing import body_writer

_MOST_INTEGERS, _MOST_OTHERS = 1024, 16
"""Constants with more elements than this say nothing about shapes (axes, sizes, scales)."""
_KEEPS_NAMES = 10
"""The version of `Slice` whose inference gives a part of an axis the name of the whole one."""


def infer(dialect: ModelOperators, node: ir.Node, count: int) -> list[object]:
    """Return what is known of each of `count` outputs, or None. Raises what onnx raises."""
    signature = dialect.signature_of(node.operator)
    is_known = signature is not None or dialect.function_of(node.op_type) is not None
    if not is_known or reference_in(node.arguments):
        return [None] * count
    if signature is None or bodies_of(node):
        call = _Call(dialect, node, count)
        model = call.model({value: value.meta for value in call.names})
        inferred = shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        types = [item.type for item in inferred.graph.output]
    else:
        constants = {value: _small_constant(value) for value in node.inputs}
        key = _key(node, signature, count, constants)
        if key not in dialect.inferred:
            dialect.inferred[key] = _node_types(_Call(dialect, node, count), constants)
        types = dialect.inferred[key]
    return [None if item is None else look_of(item) for item in types]


def _node_types(call: _Call, constants: Mapping[ir.Value, ConstantTensor | None]) -> list[Any]:
    """Return the type of every output of a node that calls no graph; None if nothing is known."""
    tensors = {}
    for value, name in call.names.items():
        constant = constants.get(value)
        if constant is not None:
            tensors[name] = onnx.TensorProto()
            tensors[name].CopyFrom(constant.tensor())
            tensors[name].name = name
    types = shape_inference.infer_node_outputs(
        call.signature.schema,
        call.proto(),
        {name: type_proto(value.meta) for value, name in call.names.items()},
        tensors,
        opset_imports=call.dialect.imports,
        ir_version=call.dialect.ir_version,
    )
    found = [types.get(name) for name in call.outputs]
    for item in found:
        if item is not None:
            _forget_wrong_sizes(call.signature.schema, item.tensor_type.shape.dim)
    return found


def _forget_wrong_sizes(schema: Any, sizes: Any) -> None:
    """Take out what onnx infers wrongly."""
    kind = (schema.domain, schema.name)
    for size in sizes:
        if kind == ("", "Slice") and schema.since_version == _KEEPS_NAMES:
            size.ClearField("dim_param")
        if kind == ("", "Attention") and size.HasField("dim_value") and size.dim_value == 0:
            size.Clear()  # what has a name counts as 0 there


def _key(
    node: ir.Node,
    signature: Signature,
    count: int,
    constants: Mapping[ir.Value, ConstantTensor | None],
) -> tuple[object, ...]:
    """Return what the types of the outputs depend on: calls of one key have the same."""
    looks = []
    for value in inputs_of(node, signature):
        constant = None if value is None else constants[value]
        data = None if constant is None else constant.data()
        content = None if data is None else bytes(data.data)
        looks.append((None if value is None else _without_unknown(value.meta), content))
    return (node.op_type, count, attributes_of(node, signature), tuple(looks))


def _without_unknown(look: object) -> object:
    """Return the look with all unknown sizes alike."""
    if not isinstance(look, ir.TensorDesc) or look.shape.is_static:
        return look
    return look.dtype, tuple("?" if is_unknown(dim) else dim for dim in look.shape)


def _small_constant(value: ir.Value) -> ConstantTensor | None:
    """Return the constant behind a value if its elements are known and few enough for shapes."""
    payload = value.node.payload
    if value.node.op_type != ir.CONSTANT or payload is None:
        return None
    constant = as_constant(payload)
    most = _MOST_INTEGERS if "int" in constant.desc.dtype else _MOST_OTHERS
    is_small = constant.desc.shape.numel <= most and not constant.is_sparse
    return constant if is_small and constant.data() is not None else None


def evaluate(
    dialect: ModelOperators, node: ir.Node, data: Mapping[ir.Value, object]
) -> tuple[object, ...]:
    """Return what the reference implementation of onnx computes. Raises what it raises."""
    from onnx.reference import ReferenceEvaluator

    call = _Call(dialect, node, len(node.outputs))
    given = {value: as_data(data[value]) for value in call.names}
    looks = {
        value: ConstantTensor.of_array(item).desc if isinstance(item, np.ndarray) else None
        for value, item in given.items()
    }
    model = call.model(looks)
    feeds = {call.names[value]: item for value, item in given.items()}
    results = ReferenceEvaluator(model).run(None, feeds)
    return tuple(item if isinstance(item, list) else np.asarray(item) for item in results)


def as_data(payload: object) -> Any:
    """Return what a constant holds as an array; anything else, data of a value, as it is."""
    if isinstance(payload, ConstantTensor):
        return payload.numpy()
    return array_of(payload) if isinstance(payload, ir.ConstantData) else payload


class _Call:
    """The operator of one call, the names of what it reads, captures included, and gives."""

    def __init__(self, dialect: ModelOperators, node: ir.Node, count: int) -> None:
        self.dialect, self._node = dialect, node
        self.signature: Any = dialect.signature_of(node.operator)
        self._inputs = inputs_of(node, self.signature)
        read = [value for value in (*self._inputs, *captures_of(node)) if value is not None]
        self.names = {value: f"input_{i}" for i, value in enumerate(dict.fromkeys(read))}
        self.outputs = [f"output_{i}" for i in range(count)]

    def proto(self) -> Any:
        node = self._node
        captured = [self.names[value] for value in captures_of(node)]
        taken = {*self.names.values(), *self.outputs}
        names = ["" if value is None else self.names[value] for value in self._inputs]
        write_body = body_writer(captured, taken)
        return node_proto(node, self.signature, names, self.outputs, write_body)

    def model(self, looks: Mapping[ir.Value, object]) -> Any:
        """Return a model of this node alone, whose inputs look like this."""
        dialect = self.dialect
        inputs = [value_info(name, looks[value]) for value, name in self.names.items()]
        outputs = [onnx.ValueInfoProto(name=name) for name in self.outputs]
        graph = helper.make_graph([self.proto()], "call", inputs, outputs)
        return helper.make_model(
            graph,
            opset_imports=dialect.imports,
            ir_version=dialect.ir_version,
            functions=dialect.function_protos(),
        )
