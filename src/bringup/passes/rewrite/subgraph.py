"""Replacing a part of a graph that a pass picked by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from bringup import ir
from bringup.errors import PassError
from bringup.passes.definition.context import PassContext
from bringup.passes.rewrite.fusing import can_fuse
from bringup.passes.rewrite.placement import PlacementRefusal, place
from bringup.passes.rewrite.rewriter import replace

T = TypeVar("T")


class SubgraphInput:
    """One input of a part of a graph: the ports of its nodes that read one and the same value.

    Args:
        ports: pairs of node and input index, counted over the values that the node reads.
    """

    def __init__(self, ports: Iterable[tuple[ir.Node, int]] = ()) -> None:
        self._ports: list[tuple[ir.Node, int]] = []
        for node, index in ports:
            self.add_input(node, index)

    def add_input(self, node: ir.Node, index: int) -> SubgraphInput:
        """Return one more port: input `index` of `node`, counted over the values that it reads.

        Raises `IndexError` when the node has no such input and `ValueError` when it reads
        another value, or is there already.
        """
        value = _at("input", node, node.inputs, index)
        if self._ports and self.value is not value:
            raise ValueError(
                f"one input of a boundary is one value: it is {self.value.name!r} so far, and "
                f"input {index} of {node.name!r} is {value.name!r}"
            )
        if (node, index) in self._ports:
            raise ValueError(f"input {index} of {node.name!r} is in this boundary input already")
        self._ports.append((node, index))
        return self

    @property
    def ports(self) -> tuple[tuple[ir.Node, int], ...]:
        """Return the ports in the order in which they were added."""
        return tuple(self._ports)

    @property
    def value(self) -> ir.Value:
        """Return what all ports read; `ValueError` when there is no port."""
        if not self._ports:
            raise ValueError("this boundary input has no port: call add_input(node, index)")
        node, index = self._ports[0]
        return node.inputs[index]


class SubgraphOutput:
    """One output of a part of a graph: output `index` of a node."""

    def __init__(self, node: ir.Node | None = None, index: int = 0) -> None:
        self._value: ir.Value | None = None
        if node is not None:
            self.set_output(node, index)

    def set_output(self, node: ir.Node, index: int = 0) -> SubgraphOutput:
        """Let it be output `index` of `node`; returns itself.

        Raises `ValueError` when that was said already and `IndexError` when the node has no
        such output.
        """
        if self._value is not None:
            raise ValueError(f"this boundary output is {self._value.name!r} already")
        self._value = _at("output", node, node.outputs, index)
        return self

    @property
    def value(self) -> ir.Value:
        """Return the value; `ValueError` when none was set."""
        if self._value is None:
            raise ValueError("this boundary output was not set: call set_output(node, index)")
        return self._value


class SubgraphBoundary:
    """The border of a part of a graph: its inputs and outputs, each under a number from 0 on."""

    def __init__(self) -> None:
        self._inputs: dict[int, SubgraphInput] = {}
        self._outputs: dict[int, SubgraphOutput] = {}

    def add_input(self, index: int, subgraph_input: SubgraphInput) -> SubgraphBoundary:
        """Let `subgraph_input` be input `index`; returns itself. `ValueError` if that is taken."""
        _add("input", self._inputs, index, subgraph_input, SubgraphInput)
        return self

    def add_output(self, index: int, subgraph_output: SubgraphOutput) -> SubgraphBoundary:
        """Let `subgraph_output` be output `index`; returns itself. `ValueError` if it is taken."""
        _add("output", self._outputs, index, subgraph_output, SubgraphOutput)
        return self

    @property
    def inputs(self) -> tuple[ir.Value, ...]:
        """Return the values that go in, by number; `ValueError` when a number is missing."""
        return tuple(item.value for item in _listed("input", self._inputs))

    @property
    def outputs(self) -> tuple[ir.Value, ...]:
        """Return the values that come out, by number; `ValueError` when a number is missing."""
        return tuple(item.value for item in _listed("output", self._outputs))

    def nodes(self) -> tuple[ir.Node, ...]:
        """Return the nodes inside, in graph order: everything between inputs and outputs.

        Raises `PassError` when there is no output, the outputs are in different graphs, or the part
        reads values that are not among its inputs.
        """
        outputs, entries = self.outputs, set(self.inputs)
        if not outputs:
            raise PassError("a boundary needs at least one output")
        graph = outputs[0].node.graph
        for value in (*outputs, *entries):
            if value.node.graph is not graph:
                raise PassError(
                    f"the boundary is in two graphs, {graph.name!r} and {value.node.graph.name!r}"
                )
        inside: set[ir.Node] = set()
        agenda = [value.node for value in outputs if value not in entries]
        while agenda:
            node = agenda.pop()
            if node in inside:
                continue
            if node.op_type == ir.INPUT:
                raise PassError(
                    f"the part reads {node.name!r}, an input of the graph, which is not among the "
                    "inputs of the boundary"
                )
            inside.add(node)
            agenda.extend(value.node for value in node.inputs if value not in entries)
        return tuple(node for node in graph.nodes if node in inside)


class SubgraphRewriter:
    """Puts a graph in the place of what a boundary encloses."""

    @staticmethod
    def replace(
        boundary: SubgraphBoundary, replacement: ir.Graph, *, context: PassContext | None = None
    ) -> tuple[ir.Node, ...]:
        """Replace what `boundary` encloses, and return the new nodes.

        With a `context` the nodes are first asked whether they may be fused, and the fusion is
        reported; a failure then also becomes the context's error message.

        Raises `PassError` when the part is not self-contained (it names the reader outside), would
        make a cycle, has side effects, or when the replacement has another number of inputs or
        outputs or another shape, dtype or device. Nothing is changed then, provided a transaction
        is open, as it is inside a pass.
        """
        try:
            return _replace(boundary, replacement, context)
        except Exception as error:
            if context is not None:
                context.set_error_message(str(error))
            raise


def _replace(
    boundary: SubgraphBoundary, replacement: ir.Graph, context: PassContext | None
) -> tuple[ir.Node, ...]:
    if not isinstance(replacement, ir.Graph):
        raise TypeError(f"a replacement must be an ir.Graph, got {type(replacement).__name__}")
    nodes = boundary.nodes()
    inputs, outputs = boundary.inputs, boundary.outputs
    if len(replacement.inputs) != len(inputs):
        raise PassError(
            f"the replacement {replacement.name!r} has {len(replacement.inputs)} inputs, the "
            f"boundary has {len(inputs)}"
        )
    if not nodes:
        raise PassError("there is nothing between the inputs and outputs of the boundary")
    graph = nodes[0].graph
    if context is not None:
        answer = can_fuse(nodes)
        if not answer.ok:
            raise PassError(f"the nodes cannot be fused: {answer.reason}")
        if not context.get_pass_name():
            raise PassError("a fusion cannot be reported without the name of the pass")
    aliases = ir.AliasAnalysis(graph)
    found = place(nodes, inputs, outputs, aliases)
    if isinstance(found, PlacementRefusal):
        raise PassError(f"the part of {graph.name!r} cannot be replaced, because of {found}")
    names = [node.name for node in nodes]
    made = replace(
        graph,
        replacement,
        inputs=inputs,
        outputs=outputs,
        nodes=nodes,
        before=found.before,
        hoist=found.hoist,
        aliases=aliases,
    )
    if context is not None:
        context.count_fusion(names, [node.name for node in made])
    return made


def _at(what: str, node: ir.Node, values: tuple[ir.Value, ...], index: int) -> ir.Value:
    if not isinstance(node, ir.Node):
        raise TypeError(f"expected an ir.Node, got {node!r}")
    if isinstance(index, bool) or not isinstance(index, int):
        raise TypeError(f"the index of an {what} must be a number, got {index!r}")
    if not 0 <= index < len(values):
        raise IndexError(
            f"node {node.name!r} ({node.op_type}) has {len(values)} {what}s; there is no number "
            f"{index}"
        )
    return values[index]


def _add(what: str, table: dict[int, T], index: int, item: T, kind: type) -> None:
    if not isinstance(item, kind):
        raise TypeError(f"expected a {kind.__name__}, got {item!r}")
    if index in table:
        raise ValueError(f"the boundary has an {what} number {index} already")
    table[index] = item


def _listed(what: str, table: dict[int, T]) -> list[T]:
    missing = next((number for number in range(len(table)) if number not in table), None)
    if missing is not None:
        raise ValueError(f"the boundary has {len(table)} {what}s, and none of number {missing}")
    return [table[number] for number in range(len(table))]
