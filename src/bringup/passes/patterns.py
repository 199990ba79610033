"""Patterns: graphs whose inputs are wildcards, open host arguments, and what to capture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bringup import ir
from bringup.errors import ExpiredHandleError, PassError

__all__ = ["AnyValue", "NodeIo", "Pattern", "PatternInputs", "any_value", "create_pattern"]


@dataclass(frozen=True)
class AnyValue:
    """Matches any argument; a name captures it, and means the same argument wherever it stands."""

    name: str = ""

    def __repr__(self) -> str:
        return f"any_value({self.name!r})" if self.name else "any_value()"


def any_value(name: str = "") -> AnyValue:
    """An open argument of a pattern: `builder.op("aten::view", x, passes.any_value("size"))`.

    With a name it is captured: `match_result["size"]`. It also matches values, e.g. a size that is
    computed.
    """
    return AnyValue(name)


@dataclass(frozen=True)
class NodeIo:
    """Output number `index` of a node of a pattern."""

    node: ir.Node
    index: int = 0


class PatternInputs:
    """The lazily made inputs of a `@pattern` method: `inputs[2]`, `inputs[0:3]`."""

    def __init__(self, builder: ir.GraphBuilder) -> None:
        self._builder = builder
        self._made: list[ir.TensorHolder] = []

    def __getitem__(self, index: int | slice) -> ir.TensorHolder | tuple[ir.TensorHolder, ...]:
        if isinstance(index, slice):
            start = 0 if index.start is None else index.start
            if index.stop is None or start < 0 or index.stop < start or index.step not in (None, 1):
                raise ValueError(
                    f"inputs[...] takes a closed slice such as inputs[0:3], got {index}"
                )
            return tuple(self._at(number) for number in range(start, index.stop))
        if isinstance(index, bool) or not isinstance(index, int):
            raise TypeError(f"inputs[...] takes a number or a slice, got {index!r}")
        if index < 0:
            raise ValueError(f"inputs[...] counts from 0, got {index}")
        return self._at(index)

    def _at(self, index: int) -> ir.TensorHolder:
        while len(self._made) <= index:
            self._made.append(self._builder.create_input())
        return self._made[index]

    def __iter__(self) -> Iterator[ir.TensorHolder]:
        raise TypeError("how many inputs a pattern has is not known yet: take inputs[0:<number>]")

    def made(self) -> tuple[ir.TensorHolder, ...]:
        """The inputs asked for so far."""
        return tuple(self._made)


class Pattern:
    """A pattern: a graph to look for, and the values in it to hand to the hooks.

    Arguments:
        graph: its inputs match any value, its other nodes match nodes of the same type and
            arguments.
        name: what reports call it; the graph's name by default.
    """

    def __init__(self, graph: ir.Graph, name: str = "") -> None:
        if not isinstance(graph, ir.Graph):
            raise TypeError(f"a pattern is made from an ir.Graph, got {type(graph).__name__}")
        self.graph = graph
        self.name = name or graph.name
        self._released = False
        self.captured: list[ir.Value] = []
        self.capture_names: dict[str, ir.Value] = {}
        _check(self)

    def capture_tensor(
        self, tensor: object, index: int | None = None, *, name: str = ""
    ) -> Pattern:
        """Capture a value of the pattern; returns the pattern.

        `match_result.get_captured_tensor(i)` gives the i-th captured one, `match_result[name]` a
        named one. One value may be captured more than once.

        Arguments:
            tensor: a holder, value, node or `NodeIo` of this pattern.
            index: which output of the node it is; of a node the first one by default.
            name: also capture it under a name.

        Raises `ValueError` for what is not of this pattern, `IndexError` for an output that the
        node does not have.
        """
        self._live()
        value = _value_of(tensor, index)
        if not isinstance(value, ir.Value) or value.node.graph is not self.graph:
            raise ValueError(
                f"pattern {self.name!r} can capture only its own values, got {tensor!r}"
            )
        self.captured.append(value)
        if name:
            self.capture_names[name] = value
        return self

    def get_captured_tensors(self) -> tuple[NodeIo, ...]:
        """What is captured so far, in order."""
        self._live()
        return tuple(NodeIo(value.node, value.index) for value in self.captured)

    def is_valid(self) -> bool:
        """Whether the pattern has not been released."""
        return not self._released

    def release(self) -> ir.Graph:
        """End the life of the pattern and return its graph. Using it afterwards raises
        `ExpiredHandleError`.
        """
        self._live()
        self._released = True
        return self.graph

    def _live(self) -> None:
        if self._released:
            raise ExpiredHandleError(
                f"graph handle has expired: pattern {self.name!r} was released"
            )


def create_pattern(graph: ir.Graph) -> Pattern:
    """A pattern of a graph: the same as `Pattern(graph)`."""
    return Pattern(graph)


def _value_of(tensor: object, index: int | None) -> object:
    if isinstance(tensor, NodeIo):
        if index is not None:
            raise TypeError(f"a NodeIo has its own index {tensor.index}; index {index} is too much")
        return _value_of(tensor.node, tensor.index)
    value = ir.plain(tensor)
    if index is None:
        return value.output if isinstance(value, ir.Node) else value
    node = value.node if isinstance(value, ir.Value) else value
    if not isinstance(node, ir.Node):
        return value
    if isinstance(index, bool) or not isinstance(index, int):
        raise TypeError(f"the index of an output must be a number, got {index!r}")
    if not 0 <= index < len(node.outputs):
        raise IndexError(
            f"node {node.name!r} has {len(node.outputs)} outputs; there is no number {index}"
        )
    return node.outputs[index]


def _check(pattern: Pattern) -> None:
    graph = pattern.graph
    if not graph.outputs:
        raise PassError(f"pattern {pattern.name!r} has no output")
    for value in graph.outputs:
        if value.node.op_type == ir.INPUT:
            raise PassError(f"pattern {pattern.name!r} returns its own input {value.name!r}")
    for index, value in enumerate(graph.inputs):
        if not value.users:
            raise PassError(f"input {index} of pattern {pattern.name!r} is used nowhere in it")
    needed: set[ir.Node] = set()
    agenda = [value.node for value in graph.outputs]
    while agenda:
        node = agenda.pop()
        if node in needed:
            continue
        needed.add(node)
        agenda.extend(value.node for value in node.inputs)
    for node in graph.nodes:
        if node not in needed and node is not graph.output_node:
            raise PassError(
                f"node {node.name!r} of pattern {pattern.name!r} contributes to no output"
            )
        if node.op_type == ir.CONSTANT:
            raise PassError(
                f"pattern {pattern.name!r} has a constant {node.name!r}; make it an input"
            )
