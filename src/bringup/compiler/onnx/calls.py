"""One call of an operator as a model of its own: what onnx infers of it, and what it computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, shape_inference

from bringup import ir
from bringup.compiler.onnx.attributes import bodies_of
from bringup.compiler.onnx.constants import ConstantTensor, array_of
from bringup.compiler.onnx.nodes import captures_of, inputs_of, node_proto
from bringup.compiler.onnx.operators import reference_in
from bringup.compiler.onnx.types import look_of, type_proto

if TYPE_CHECKING:
    from bringup.compiler.onnx.dialect import OnnxDialect

__all__ = ["as_constant", "evaluate", "infer"]

_SMALL = 1024
"""Constants with more elements than this say nothing about shapes."""


def as_constant(payload: object) -> ConstantTensor:
    """The payload of a constant in this dialect's form: from an array, data by value, or a tensor
    of a framework (anything with `detach`). `TypeError` for anything else.
    """
    if isinstance(payload, ConstantTensor):
        return payload
    if isinstance(payload, ir.ConstantData):
        return ConstantTensor.of_data(payload)
    held: Any = payload
    if hasattr(payload, "detach"):
        held = held.detach().cpu().numpy()
    if isinstance(held, (np.ndarray, np.generic)):
        return ConstantTensor.of_array(held)
    raise TypeError(
        f"a constant of an ONNX graph must be a ConstantTensor or an array, got "
        f"{type(payload).__name__}"
    )


def infer(dialect: OnnxDialect, node: ir.Node, count: int) -> list[object]:
    """The description of each of `count` outputs; None where nothing is known. Raises what onnx
    raises.
    """
    signature = dialect.signature_of(node.operator)
    is_known = signature is not None or dialect.function_of(node.op_type) is not None
    if not is_known or reference_in(node.arguments):
        return [None] * count
    call = _Call(dialect, node, count)
    if signature is None or bodies_of(node):
        model = call.model({value: value.meta for value in call.names})
        inferred = shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        types = {item.name: item.type for item in inferred.graph.output}
    else:
        types = shape_inference.infer_node_outputs(
            signature.schema,
            call.proto(),
            {name: type_proto(value.meta) for value, name in call.names.items()},
            _small_constants(call.names),
            opset_imports=dialect.imports,
            ir_version=dialect.ir_version,
        )
    return [look_of(types[name]) if name in types else None for name in call.outputs]


def _small_constants(names: Mapping[ir.Value, str]) -> dict[str, Any]:
    found = {}
    for value, name in names.items():
        payload = value.node.payload
        if value.node.op_type == ir.CONSTANT and payload is not None:
            constant = as_constant(payload)
            if constant.desc.shape.numel <= _SMALL and not constant.is_sparse:
                tensor = onnx.TensorProto()
                tensor.CopyFrom(constant.tensor())
                tensor.name = name
                found[name] = tensor
    return found


def evaluate(
    dialect: OnnxDialect, node: ir.Node, data: Mapping[ir.Value, object]
) -> tuple[object, ...]:
    """What the reference implementation of onnx computes. Raises what it raises."""
    from onnx.reference import ReferenceEvaluator

    call = _Call(dialect, node, len(node.outputs))
    given = {value: _as_data(data[value]) for value in call.names}
    model = call.model({value: _look_of_data(item) for value, item in given.items()})
    feeds = {call.names[value]: item for value, item in given.items()}
    results = ReferenceEvaluator(model).run(None, feeds)
    return tuple(item if isinstance(item, list) else np.asarray(item) for item in results)


def _as_data(payload: object) -> Any:
    if isinstance(payload, ConstantTensor):
        return payload.numpy()
    return array_of(payload) if isinstance(payload, ir.ConstantData) else payload


def _look_of_data(data: object) -> object:
    return ConstantTensor.of_array(data).desc if isinstance(data, np.ndarray) else None


class _Call:
    """Names for the values of one call.

    Attributes:
        names: of what is read, captured values included, in order.
        outputs: of the outputs.
    """

    def __init__(self, dialect: OnnxDialect, node: ir.Node, count: int) -> None:
        self._dialect, self._node = dialect, node
        self._signature = dialect.signature_of(node.operator)
        self._inputs = inputs_of(node, self._signature)
        read = [value for value in (*self._inputs, *captures_of(node)) if value is not None]
        self.names = {value: f"input_{i}" for i, value in enumerate(dict.fromkeys(read))}
        self.outputs = [f"output_{i}" for i in range(count)]

    def proto(self) -> Any:
        """The node."""
        from bringup.compiler.onnx.writing import body_writer

        node = self._node
        captured = [self.names[value] for value in captures_of(node)]
        taken = {*self.names.values(), *self.outputs}
        names = ["" if value is None else self.names[value] for value in self._inputs]
        write_body = body_writer(captured, taken)
        return node_proto(node, self._signature, names, self.outputs, write_body)

    def model(self, looks: Mapping[ir.Value, object]) -> Any:
        """A model of this node alone, whose inputs look like this."""
        dialect = self._dialect
        inputs = [_value_info(name, looks[value]) for value, name in self.names.items()]
        outputs = [onnx.ValueInfoProto(name=name) for name in self.outputs]
        graph = helper.make_graph([self.proto()], "call", inputs, outputs)
        return helper.make_model(
            graph,
            opset_imports=dialect.imports,
            ir_version=dialect.ir_version,
            functions=dialect.function_protos(),
        )


def _value_info(name: str, look: object) -> Any:
    info = onnx.ValueInfoProto(name=name)
    if look is not None:
        info.type.CopyFrom(type_proto(look))
    return info
