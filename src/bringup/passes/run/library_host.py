"""What the engine asks Python while hooks of a C or C++ library run over a graph of Python.

The session, its statuses and checks are those of every pass; the library's code runs without the
GIL. `include/bringup/engine.h` is the contract.
"""

from __future__ import annotations

from typing import Any

from bringup import ir
from bringup.passes.patterns.elements import AnyValue, Constant
from bringup.passes.patterns.pattern import Pattern, Variadic


class LibraryHost:
    """Answers about the graph being rewritten; makes a hook's graphs and patterns Python's."""

    any_value = AnyValue
    constant_value = Constant
    variadic = Variadic

    def __init__(self, dialect: ir.Dialect | None) -> None:
        self._dialect = dialect

    # Questions about the graph that is being rewritten

    def bind(self, op_type: str, arguments: tuple[object, ...]) -> tuple[ir.Operator, Any]:
        """Return the operator and all its arguments in schema order."""
        if self._dialect is None:
            return ir.Operator(op_type), arguments
        return self._dialect.bind(op_type, arguments, {})

    def infer(self, node: ir.Node) -> None:
        """Describe the outputs of a node that is new or has another argument."""
        node.graph.shape_again(node)

    def supports(self, node: ir.Node) -> tuple[bool, str]:
        """Return whether the node can be executed, and if not, why."""
        return (True, "") if self._dialect is None else self._dialect.supports(node)

    def constant(self, node: ir.Node, data: tuple[str, tuple[int, ...], bytes]) -> None:
        payload = self.payload(*data)
        node.payload = payload
        if self._dialect is not None:
            node.graph.set_meta(node.output, self._dialect.constant_meta(payload))

    # Building what a library made

    def graph(self, name: str) -> ir.Graph:
        """Return an empty graph, whose operators are bound as they are inserted."""
        return ir.Graph(name, self._dialect)

    def payload(self, dtype: str, shape: tuple[int, ...], data: bytes) -> object:
        constant = ir.ConstantData(dtype, shape, data)
        return constant if self._dialect is None else self._dialect.constant_of(constant)

    def choice(self, graph: ir.Graph, alternatives: tuple[object, ...], name: str) -> ir.Node:
        """Add a node that stands for any one of the alternatives."""
        node = graph.insert_call(ir.Operator(ir.ONE_OF), alternatives, output_count=1)
        node.meta["name"] = name
        return node

    def where(self, value: ir.Value, *facts: Any) -> None:
        """State what a tensor of a pattern must look like."""
        stated = value.node.meta.setdefault("where", {})
        assert isinstance(stated, dict), "only `where` writes it"
        stated[value.index] = ir.TensorConstraint(*facts)

    def pattern(
        self, graph: ir.Graph, name: str, constant_values: bool, attributes: bool
    ) -> Pattern:
        return Pattern(graph, name, constant_values=constant_values, attributes=attributes)
