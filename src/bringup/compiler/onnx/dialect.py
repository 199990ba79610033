"""The ONNX dialect: what the operators of a model's opsets are, asked of the package onnx."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from onnx import helper

from bringup import ir
from bringup.compiler.onnx import calls, operators, sampling
from bringup.compiler.onnx.attributes import bodies_of
from bringup.compiler.onnx.computed_shapes import computed_look
from bringup.compiler.onnx.constants import as_constant
from bringup.compiler.onnx.nodes import captures_of
from bringup.compiler.onnx.opsets import ModelOperators
from bringup.compiler.onnx.types import dtype_number, is_unknown, joined
from bringup.errors import ModelError, PassError, SchemaError
from bringup.passes.rewrite.rewriter import replace

IMPORTS = "opset_import"
"""The attribute of a model's or function's graph with the versions of its domains."""
_BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "matmul": "MatMul", "pow": "Pow"}


class OnnxDialect(ModelOperators, ir.VerifiableDialect):
    """The dialect of the operators of ONNX, `onnx::` being the default domain.

    Args:
        opsets: the version of each domain; of the default one (`""`) the newest where missing.
        functions: the model's own functions by operator type.
        ir_version: of the model.
    """

    values_are_immutable = True
    infix: ClassVar[Mapping[str, str]] = {
        **{name: f"onnx::{op}" for name, op in _BINARY.items()},
        "neg": "onnx::Neg",
    }

    @property
    def name(self) -> str:
        """Return the vocabulary with its versions: patterns are looked up again for another one."""
        versions = (f"{domain or 'ai.onnx'} {n}" for domain, n in sorted(self._versions.items()))
        return f"onnx ({', '.join(versions)})"

    def detached(self) -> OnnxDialect:
        """See `ir.Dialect`: one of the same versions that belongs to no model."""
        return OnnxDialect(self.opsets, ir_version=self.ir_version)

    # Operators

    def bind(
        self, op_type: str, arguments: Sequence[object], keywords: Mapping[str, object]
    ) -> tuple[ir.Operator, tuple[object, ...]]:
        """See `ir.Dialect.bind`.

        What only another version of the domain has is taken too, as an operator that no node is
        like: a pattern of it matches nothing, and a graph refuses it. Operators of domains without
        schemas are taken as they come: any values, any attributes.
        """
        found = self.signature_named(op_type)
        if found is None and op_type in self._foreign:
            return self._foreign[op_type], operators.foreign_arguments(arguments, keywords)
        domain, name = operators.domain_of(op_type)
        if found is not None:
            try:
                return found.operator, found.bound(arguments, keywords)
            except operators.IncompleteError:
                raise
            except SchemaError:
                since = operators.other_version(domain, name, arguments, keywords)
                if since is None:
                    raise
        elif not operators.is_known_domain(domain):
            operator = self._foreign[op_type] = operators.foreign(op_type)
            return operator, operators.foreign_arguments(arguments, keywords)
        else:
            since = operators.other_version(domain, name, arguments, keywords)
            if since is None:
                raise operators.no_such_operator(domain, name)
        _, attributes, captures = operators.foreign_arguments((), keywords)
        (inputs, *_) = operators.foreign_arguments(arguments, {})
        return operators.absent(op_type, since), (inputs, since, attributes, captures)

    def draws_random(self, node: ir.Node) -> bool:
        """See `ir.Dialect.draws_random`: not a dropout that does not train; bodies are asked."""
        if not node.operator.random:
            return False
        name = node.op_type.partition("::")[2]
        if name == "Dropout":
            return _trains(node)
        inner = [each for body in bodies_of(node) for each in body.graph.get_all_nodes()]
        if inner or operators.is_foreign(node.operator):
            is_drawing = any(each.operator.random and self.draws_random(each) for each in inner)
            return is_drawing or self._is_random_function(node.op_type)
        return name not in _DETERMINISTIC

    def _is_random_function(self, op_type: str) -> bool:
        """Return whether anything in a function may draw numbers."""
        function = self.function_of(op_type)
        if function is None:
            return False
        if op_type not in self._random_functions:
            self._random_functions[op_type] = False  # a function cannot call itself
            self._random_functions[op_type] = any(map(self._is_random_proto, function.node))
        return self._random_functions[op_type]

    def _is_random_proto(self, proto: Any) -> bool:
        op_type = operators.type_of(proto.domain, proto.op_type, proto.overload)
        if self._is_random_function(op_type):
            return True
        graphs = [attribute.g for attribute in proto.attribute]
        graphs += [graph for attribute in proto.attribute for graph in attribute.graphs]
        if any(self._is_random_proto(node) for graph in graphs for node in graph.node):
            return True
        found = self._signature(*operators.domain_of(op_type))
        is_random = found is not None and found.operator.random and not found.has_bodies
        return is_random and proto.op_type not in _DETERMINISTIC

    # Values

    def infer(self, node: ir.Node, instead_of: ir.Value | None = None) -> tuple[object, ...]:
        """See `ir.Dialect.infer`. Where less can be inferred than was known of a value, what was
        known is kept.

        Raises `SchemaError` for an operator that these versions do not have, and `ValueError` where
        the call has to say how many outputs it has.
        """
        reason = operators.absent_reason(node.operator)
        if reason is not None:
            raise SchemaError(f"{reason}: {self.name}")
        count = len(node.outputs) or node.operator.output_count
        if count is None:
            raise ValueError(
                f"how many outputs {node.op_type} has depends on the call: pass outputs=<number>"
            )
        inferred = calls.infer(self, node, count)
        known = [value.meta for value in node.outputs]
        if instead_of is not None and not known:
            known = [instead_of.meta]
        known.extend([None] * (count - len(known)))
        looks = [_settled(new, old) for new, old in zip(inferred, known, strict=True)]
        return tuple(computed_look(node, look) for look in looks)

    def is_settled(self, meta: object) -> bool:
        """See `ir.Dialect`: whether it is a tensor whose sizes have numbers or names."""
        return isinstance(meta, ir.TensorDesc) and not any(map(is_unknown, meta.shape))

    def pass_on_shapes(self, graph: ir.Graph) -> None:
        """See `ir.Dialect`: what inner graphs read of this one looks there as it does here."""
        for subgraph in graph.get_all_subgraphs():
            node = subgraph.get_parent_node()
            captures = () if node is None else captures_of(node)
            if captures:
                for inner, outer in zip(subgraph.inputs[-len(captures) :], captures, strict=True):
                    if inner.meta is None:
                        subgraph.set_meta(inner, outer.meta)

    def meta_of(self, desc: ir.TensorDesc) -> object:
        """See `ir.Dialect.meta_of`: the description itself."""
        try:
            dtype_number(desc.dtype)
        except ValueError as error:
            raise PassError(str(error)) from error
        return ir.TensorDesc(desc.shape, desc.dtype)

    def difference(self, old: object, new: object) -> str | None:
        """See `ir.Dialect.difference`: dtype, rank and sizes that are numbers must agree."""
        if joined(old, new) is not None:
            return None
        if isinstance(old, ir.TensorDesc) and isinstance(new, ir.TensorDesc):
            if old.dtype != new.dtype:
                return f"expected dtype {old.dtype}, got {new.dtype}"
            return f"expected shape {old.shape}, got {new.shape}"
        return f"expected {old}, got {new}"

    def sample(self, meta: object, seed: int, draw: int) -> object:
        """See `ir.Dialect.sample`."""
        return sampling.sample(meta, seed, draw)

    def distance(self, expected: object, got: object) -> tuple[float, float]:
        """See `ir.Dialect.distance`."""
        return sampling.distance(calls.as_data(expected), calls.as_data(got))

    def vary(
        self,
        meta: object,
        dtype: str | None = None,
        resized: Callable[[int], int] | None = None,
    ) -> object:
        """See `ir.Dialect.vary`."""
        return sampling.vary(meta, dtype, resized)

    # Constants

    def evaluate(self, node: ir.Node, constants: Mapping[ir.Value, object]) -> tuple[object, ...]:
        """See `ir.Dialect.evaluate`: by onnx's reference implementation."""
        return calls.evaluate(self, node, constants)

    def can_fold(self, node: ir.Node) -> bool:
        """Return whether a node on constants may be computed once: its schema is known, it returns
        tensors that are not large, or not much larger than what they are made of, and calls no
        graph.
        """
        signature = self.signature_of(node.operator)
        return (
            signature is not None
            and not bodies_of(node)
            and all(isinstance(value.meta, ir.TensorDesc) for value in node.outputs)
            and not operators.reference_in(node.arguments)
            and _is_within(node)
        )

    def inline_calls(self, graph: ir.Graph) -> int:
        """See `ir.Dialect`: an `If` on a constant is its branch, if that calls no graphs."""
        count = 0
        for node in graph.find("onnx::If"):
            condition = node.inputs[0].node
            is_known = condition.op_type == ir.CONSTANT
            data = as_constant(condition.payload).data() if is_known else None
            if data is None or len(data.data) != 1:
                continue
            body: Any = node.argument("then_branch" if any(data.data) else "else_branch")
            if any(inner.get_parent_node() is not None for inner in body.graph.get_all_subgraphs()):
                continue
            try:
                with graph.savepoint():
                    replace(
                        graph,
                        body.graph,
                        inputs=captures_of(node),
                        outputs=node.outputs,
                        nodes=[node],
                        before=node,
                        aliases=ir.AliasAnalysis(graph),
                    )
            except PassError:  # the branches' results differ in what the If says of them
                continue
            count += 1
        return count

    def constant(self, payload: ir.ConstantData) -> object:
        """See `ir.Dialect.constant`."""
        return as_constant(payload)

    def constant_meta(self, payload: object) -> object:
        """See `ir.Dialect.constant_meta`."""
        return as_constant(payload).desc

    def constant_of(self, data: ir.ConstantData) -> object:
        """See `ir.Dialect.constant_of`."""
        try:
            return as_constant(data)
        except ValueError as error:
            raise PassError(f"a constant of {data.dtype}{list(data.shape)}: {error}") from error

    def constant_data(self, payload: object) -> ir.ConstantData | None:
        """See `ir.Dialect.constant_data`. Unknown for text and for sparse tensors."""
        return as_constant(payload).data()

    def supports(self, node: ir.Node) -> tuple[bool, str]:
        """See `ir.Dialect.supports`: is it said what the operator computes?"""
        reason = operators.absent_reason(node.operator)
        if reason is not None:
            return False, reason
        if self.signature_of(node.operator) is None and self.function_of(node.op_type) is None:
            return False, f"{node.op_type} has no schema, and is no function of the model"
        return True, ""


_MOST_BYTES = 1 << 20
"""How large a folded tensor may be that is larger than twice what it is made of."""
_GROWING = frozenset(
    f"onnx::{name}"
    for name in (
        *("ConstantOfShape", "Range", "Expand", "Tile", "Pad", "Resize", "Upsample", "OneHot"),
        *("MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose", "MaxUnpool", "Scan"),
    )
)
"""Operators whose results may be far larger than their inputs."""


def _is_within(node: ir.Node) -> bool:
    sizes = [_bytes_of(value) for value in node.outputs if value.users]
    if None in sizes:
        return node.op_type not in _GROWING
    given = sum(_bytes_of(value) or 0 for value in node.inputs)
    return sum(size or 0 for size in sizes) <= max(_MOST_BYTES, 2 * given)


def _bytes_of(value: ir.Value) -> int | None:
    desc = value.desc
    if desc is None or not desc.shape.is_static:
        return None
    dtype = helper.tensor_dtype_to_np_dtype(dtype_number(desc.dtype))
    return desc.shape.numel * int(np.dtype(dtype).itemsize)


_DETERMINISTIC = frozenset({"AffineGrid"})
"""onnx calls it random, since it may be written as a graph that has an If."""


def _trains(node: ir.Node) -> bool:
    """Return whether a dropout may be in training mode."""
    if not any(parameter.name == "training_mode" for parameter in node.operator.parameters):
        return node.has_attr("is_test") and node.argument("is_test") == 0
    mode = node.argument("training_mode")
    if mode is None:
        return False
    payload = mode.node.payload if isinstance(mode, ir.Value) else None
    return payload is None or bool(as_constant(payload).numpy().any())


def _settled(inferred: object, known: object) -> object:
    """Return the description after inference; inferred facts win over contradicting ones."""
    if inferred is None or known is None:
        return known if inferred is None else inferred
    together = joined(inferred, known)
    return inferred if together is None else together


def require_opset(graph: ir.Graph, domain: str, version: int) -> None:
    """Let the model (or function) that a graph belongs to import a version of a domain.

    Undone with the transaction. Raises `ModelError` when it imports another version.

    Args:
        graph: of the model, or one that its nodes call.
        domain: `""` or `"ai.onnx"` for ONNX's own operators.
        version: of the domain.
    """
    root = graph
    while (parent := root.get_parent_graph()) is not None:
        root = parent
    domain = "" if domain == "ai.onnx" else domain
    imports = dict(root.get_attr(IMPORTS)) if root.has_attr(IMPORTS) else {}  # type: ignore[call-overload]
    if imports.get(domain, version) != version:
        raise ModelError(
            f"{root.name!r} imports version {imports[domain]} of the domain {domain!r}, "
            f"and version {version} is asked for"
        )
    if domain not in imports:
        root.set_attr(IMPORTS, {**imports, domain: version})
