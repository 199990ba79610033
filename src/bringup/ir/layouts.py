"""Keeping the strides of values that others depend on, where a pass gave a value other ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bringup.errors import PassError, first_line
from bringup.ir._engine import NodeBase
from bringup.ir.dialect import Dialect
from bringup.ir.effects import AliasAnalysis
from bringup.ir.node import CONSTANT, INPUT, Node, Value
from bringup.ir.outputs import replace_output
from bringup.ir.protocols import EditableGraph


@dataclass(frozen=True, eq=False)
class Expectation:
    """How a value looked to readers before its layout changed; `results` are its places."""

    value: Value
    node: Node
    meta: object
    readers: tuple[Node, ...]
    results: tuple[int, ...]

    @classmethod
    def of(cls, value: Value, meta: object, read: Value) -> Expectation:
        """Return what the readers of `read`, which `value` is or stands for, count on."""
        outputs = read.graph.outputs
        results = tuple(index for index, item in enumerate(outputs) if item is read)
        return cls(value, value.node, meta, read.users, results)


def settle(
    graph: EditableGraph,
    dialect: Dialect,
    relaid: Iterable[Node],
    expected: Iterable[Expectation],
    rule: str,
) -> None:
    """Infer again what reads a value whose strides changed, until nothing changes any more.

    What depends on strides reads a copy that is laid out as before: results (the caller may view
    them), operators that read memory by strides, and those that cannot take the new ones. `relaid`
    nodes read something else than before; `expected` is what readers of replaced values counted on.

    Raises `PassError`, blaming `rule`, when a node takes neither or its result would change.
    """
    _Settling(graph, dialect, rule).run(relaid, expected)


class _Settling:
    def __init__(self, graph: EditableGraph, dialect: Dialect, rule: str) -> None:
        self._graph = graph
        self._dialect = dialect
        self._rule = rule or "the edit"
        self._expected: dict[Value, Expectation] = {}
        self._agenda: dict[Node, None] = {}
        self._aliases: AliasAnalysis | None = None
        self._returned: set[NodeBase] = set()

    def run(self, relaid: Iterable[Node], expected: Iterable[Expectation]) -> None:
        self._agenda.update(dict.fromkeys(relaid))
        for item in expected:
            if self._graph.owns(item.node):
                self._expect(item)
        while self._agenda:
            self._agenda = {node: None for node in self._agenda if self._graph.owns(node)}
            if not self._agenda:
                return
            node = min(self._agenda, key=lambda item: item.order)
            del self._agenda[node]
            if node.operator.parameters:
                self._settle(node)

    def _settle(self, node: Node) -> None:
        try:
            metas = self._dialect.infer(node)
        except Exception as error:
            reason = first_line(error)
            restored = [self._restore(value) for value in node.inputs if value in self._expected]
            if any(restored):
                self._agenda[node] = None
                return
            raise PassError(
                f"after {self._rule}, {node!r} cannot take its inputs: {reason}"
            ) from error
        for value, meta in zip(node.outputs, metas, strict=True):
            former = value.meta
            difference = self._dialect.difference(former, meta)
            if difference is not None:
                raise PassError(f"after {self._rule}, {node!r} changes: {difference}")
            self._graph.set_meta(value, meta)
            if not self._dialect.same_layout(former, meta):
                self._agenda.update(dict.fromkeys(value.users))
                self._expect(Expectation.of(value, former, value))

    def _expect(self, item: Expectation) -> None:
        """Remember what readers of a value counted on; restore it if one depends on strides."""
        readers = tuple(node for node in item.readers if self._graph.owns(node))
        known = self._expected.get(item.value)
        if known is not None and not self._dialect.same_layout(known.meta, item.meta):
            return
        results = item.results
        if known is not None:
            readers, results = readers + known.readers, results + known.results
        item = replace(item, readers=readers, results=results)
        self._expected[item.value] = item
        reads_strides = self._dialect.reads_strides
        depends = any(node.operator.opaque or reads_strides(node) for node in readers)
        if depends or self._is_returned(item.value):
            self._restore(item.value)

    def _is_returned(self, value: Value) -> bool:
        """Return whether a result of the graph is this value, or may be a view of it."""
        if self._aliases is None:
            self._aliases = AliasAnalysis(self._graph, track_views=True)
            self._returned = {self._aliases.root(item) for item in self._graph.outputs}
        return self._aliases.root(value) in self._returned

    def _restore(self, value: Value) -> bool:
        """Let the readers of a value read a copy of it, laid out as they expect."""
        item = self._expected[value]
        readers = [node for node in item.readers if self._graph.owns(node) and value in node.inputs]
        if not readers or self._dialect.same_layout(item.meta, value.meta):
            return False
        copy = self._dialect.laid_out_as(value, item.meta, _behind(value.node))
        if copy is None:
            return False
        for reader in readers:
            if reader is not self._graph.output_node:
                self._graph.exchange(reader, {value: copy})
                self._agenda[reader] = None
        for result in item.results:  # others may return the value itself
            if self._graph.outputs[result] is value:
                replace_output(self._graph, result, copy)
        return True


def _behind(node: Node) -> Node:
    """Return the first node behind this one in front of which an operator may stand."""
    following = node.next
    while following is not None and following.op_type in (INPUT, CONSTANT):
        following = following.next
    assert following is not None, "the output node is the last"
    return following
