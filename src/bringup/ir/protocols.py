"""What modules below `graph` need of a graph, and a graph of the builder, which is above it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from bringup.ir._engine import GraphCore
from bringup.ir.dialect import Dialect
from bringup.ir.node import Node, Value
from bringup.ir.operators import Operator


class EditableGraph(Protocol):
    """The part of `Graph` by which its arguments are computed and its layouts settled."""

    _core: GraphCore
    dialect: Dialect | None

    @property
    def is_in_transaction(self) -> bool: ...
    @property
    def nodes(self) -> tuple[Node, ...]: ...
    @property
    def inputs(self) -> tuple[Value, ...]: ...
    @property
    def outputs(self) -> tuple[Value, ...]: ...
    @property
    def output_node(self) -> Node: ...
    def find(self, op_type: str) -> tuple[Node, ...]: ...
    def owns(self, node: Node) -> bool: ...
    def insert(
        self, op_type: str, arguments: tuple[object, ...], *, before: Node | None = None
    ) -> Node: ...
    def insert_call(
        self,
        operator: Operator,
        arguments: tuple[object, ...],
        *,
        before: Node | None = None,
        output_count: int | None = None,
    ) -> Node: ...
    def set_outputs(self, *outputs: object) -> None: ...
    def set_meta(self, value: Value, meta: object) -> None: ...
    def exchange(self, node: Node, values: Mapping[Value, Value]) -> None: ...


class Calls(Protocol):
    """The part of `GraphBuilder` that calls operators and makes constants."""

    def op(
        self, op_type: str, *arguments: object, outputs: int | None = None, **keywords: object
    ) -> Any: ...
    def create_constant(
        self, values: object, dtype: str | None = None, *, name: str = "constant"
    ) -> Any: ...
    def create_scalar(self, value: complex, dtype: str | None = None) -> Any: ...
    @property
    def aten(self) -> Any: ...
