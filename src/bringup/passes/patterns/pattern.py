"""Patterns: graphs whose inputs are wildcards, lists of open length, and what to capture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast, overload

from bringup import ir
from bringup.errors import ExpiredHandleError, PassError
from bringup.ir.node import plain
from bringup.passes.patterns.convert import as_graph
from bringup.passes.patterns.elements import AnyValue, ArgumentPattern, Constant


@dataclass(frozen=True)
class NodeIo:
    """Output number `index` of a node of a pattern."""

    node: ir.Node
    index: int = 0


class PatternInputs:
    """The lazily made inputs of a `@pattern` method: `inputs[2]`, `inputs[0:3]`.

    Args:
        builder: makes an input when it is first asked for.
    """

    def __init__(self, builder: ir.GraphBuilder) -> None:
        self._builder = builder
        self._made: list[ir.TensorHolder] = []

    @overload
    def __getitem__(self, index: int) -> ir.TensorHolder: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[ir.TensorHolder, ...]: ...

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
        """Return the inputs asked for so far."""
        return tuple(self._made)


@dataclass(frozen=True)
class Variadic(ArgumentPattern):
    """Matches a list of values of any length, or what a list has besides its other items.

    Attributes:
        name: what the values are captured as.
        at_least, at_most: bounds of their number; None for no upper one.
        each: the pattern that every value must be the output of; None for any value.
    """

    name: str
    at_least: int = 0
    at_most: int | None = None
    each: Pattern | None = None

    def __repr__(self) -> str:
        stated = [repr(self.name)]
        if self.at_least:
            stated.append(f"at_least={self.at_least}")
        if self.at_most is not None:
            stated.append(f"at_most={self.at_most}")
        if self.each is not None:
            stated.append(f"each={self.each.name}")
        return f"variadic({', '.join(stated)})"


class Pattern:
    """A pattern: a graph to look for, and the values in it to hand to the hooks.

    Args:
        graph: its inputs match any value, its other nodes match nodes of the same type and
            arguments; see `passes.optional`, `one_of`, `variadic`, `constant`, `any_value`.
        name: what reports call it; the graph's name by default.
        constant_values: whether a constant of the pattern whose data is known matches only a
            constant of the same dtype, shape and bytes; otherwise any constant.
        attributes: whether host arguments are compared at all; a value never fits one.

    Raises `TypeError` when `graph` is no `ir.Graph`, and `PassError` when it cannot be meant as a
    pattern.
    """

    def __init__(
        self,
        graph: ir.Graph,
        name: str = "",
        *,
        constant_values: bool = True,
        attributes: bool = True,
    ) -> None:
        if not isinstance(graph, ir.Graph):
            raise TypeError(f"a pattern is made from an ir.Graph, got {type(graph).__name__}")
        self.graph = graph
        self.name = name or graph.name
        self._released = False
        self.constant_values = constant_values
        self.attributes = attributes
        self.captured: list[ir.Value] = []
        self.capture_names: dict[str, ir.Value] = {}
        self.library_values: Mapping[tuple[int, int], ir.Value] = {}
        """Of a pattern that a library made: by node and output as the library counts them."""
        # Data come in order from the builder; control edges may lead backwards, or in a circle.
        failure = graph.topological_sort() if graph.has_control_edges else None
        if failure is not None:
            node, reason = failure
            raise PassError(f"pattern {self.name!r} cannot run: at {node.name!r} {reason}")
        self.nodes = tuple(node for node in graph.nodes if node.op_type not in _NOT_MATCHED)
        self.control_edges = tuple(
            (source, node) for node in graph.nodes for source in node.control_inputs
        )
        self.choices: dict[str, ir.Node] = {}
        self.compiled: tuple[object, object] | None = None
        """What `program_of` made of it, and of what state."""
        self.names = _check(self)

    def capture_tensor(
        self, tensor: object, index: int | None = None, *, name: str = ""
    ) -> Pattern:
        """Capture a value of the pattern; returns the pattern.

        `match_result.get_captured_tensor(i)` gives the i-th captured one, `match_result[name]` a
        named one. One value may be captured more than once.

        Args:
            tensor: a holder, value, node or `NodeIo` of this pattern.
            index: which output of the node it is; of a node the first one by default.
            name: also capture it under a name.

        Raises `ValueError` for what is not of this pattern, `IndexError` for an output that the
        node does not have.
        """
        self._live()
        value = self._own(tensor, index)
        self.captured.append(value)
        if name:
            _claim(self.names, name, "a capture", self.name)
            self.capture_names[name] = value
        return self

    def bind(self, dialect: ir.Dialect) -> None:
        """Look the operators up in `dialect`, here and in every `each`, where that was not done."""
        if not self.graph.is_bound:
            self.graph.bind(dialect)
        for item in argument_patterns(self.graph):
            if isinstance(item, Variadic) and item.each is not None:
                item.each.bind(dialect)

    def constraint(self, value: ir.Value) -> ir.TensorConstraint | None:
        """Return what `where` asked of a value of the pattern."""
        stated = cast("dict[int, ir.TensorConstraint]", value.node.meta.get("where", {}))
        return stated.get(value.index)

    def _own(self, tensor: object, index: int | None) -> ir.Value:
        value = _value_of(tensor, index)
        if not isinstance(value, ir.Value) or value.node.graph is not self.graph:
            raise ValueError(
                f"pattern {self.name!r} can capture only its own values, got {tensor!r}"
            )
        return value

    def get_captured_tensors(self) -> tuple[NodeIo, ...]:
        """Return what is captured so far, in order."""
        self._live()
        return tuple(NodeIo(value.node, value.index) for value in self.captured)

    def is_valid(self) -> bool:
        """Return whether the pattern has not been released."""
        return not self._released

    def release(self) -> ir.Graph:
        """End the pattern's life and return its graph. Later use raises `ExpiredHandleError`."""
        self._live()
        self._released = True
        return self.graph

    def _live(self) -> None:
        if self._released:
            raise ExpiredHandleError(
                f"graph handle has expired: pattern {self.name!r} was released"
            )


def create_pattern(graph: ir.Graph) -> Pattern:
    """Return a pattern of a graph: the same as `Pattern(graph)`."""
    return Pattern(graph)


def capture_tensor(pattern: Pattern, tensor: object, index: int | None = None) -> Pattern:
    """Return the same as `pattern.capture_tensor(tensor, index)`, as a function.

    Args:
        pattern: it is changed, and returned.
        tensor: a holder, value, node or `NodeIo` of this pattern.
        index: which output of the node it is; of a node the first one by default.

    Raises:
        ValueError: it is not of this pattern.
        IndexError: the node has no such output.
    """
    return pattern.capture_tensor(tensor, index)


def _value_of(tensor: object, index: int | None) -> object:
    if isinstance(tensor, NodeIo):
        if index is not None:
            raise TypeError(f"a NodeIo has its own index {tensor.index}; index {index} is too much")
        return _value_of(tensor.node, tensor.index)
    value = plain(tensor)
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


_MOST_ALTERNATIVES = 256
_NOT_MATCHED = (ir.INPUT, ir.OUTPUT, ir.ONE_OF)


def as_pattern(given: object, name: str) -> Pattern:
    """Return a pattern of one, a graph, or a function of `inputs`. Raises `TypeError`."""
    if isinstance(given, Pattern):
        return given
    if isinstance(given, ir.Graph):
        return Pattern(given)
    if not callable(given):
        raise TypeError(
            f"{name!r} must be a Pattern, an ir.Graph or a function of its inputs, got {given!r}"
        )
    inputs = PatternInputs(ir.GraphBuilder(name))
    return Pattern(as_graph(given(inputs), name), name)


def variadic(
    name: str, *, each: object = None, at_least: int = 0, at_most: int | None = None
) -> Variadic:
    """Return a list of values of open length: `builder.op("aten::cat", passes.variadic("xs"), 1)`.

    It stands for a whole list argument, or for one item in a list whose other items are given
    (`[x, passes.variadic("rest")]`), and then for all that they leave.

    Args:
        name: what the values are captured as: `match_result["xs"]` is a tuple of values.
        each: what every one of the values must be: a pattern or graph of one output, or a function
            `(inputs) -> holder` like a `@pattern` method. `match_result.each("xs")` has a match for
            each. Names in it hold within one item, unless the pattern around it has them too.
        at_least, at_most: how many there may be.

    Raises `TypeError` or `ValueError` for a name, pattern or number that cannot be meant, and
    `PassError` when `each` has not exactly one output.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"variadic: the name must be a non-empty string, got {name!r}")
    for bound in (at_least, 0 if at_most is None else at_most):
        if isinstance(bound, bool) or not isinstance(bound, int) or bound < 0:
            raise ValueError(
                f"variadic {name!r}: a bound must be a number from 0 up, got {bound!r}"
            )
    if at_most is not None and at_most < at_least:
        raise ValueError(f"variadic {name!r}: at_most {at_most} is less than at_least {at_least}")
    item = None if each is None else as_pattern(each, name)
    if item is not None and len(item.graph.outputs) != 1:
        raise PassError(
            f"variadic {name!r}: each must have one output, it has {len(item.graph.outputs)}"
        )
    return Variadic(name, at_least, at_most, item)


def argument_patterns(graph: ir.Graph) -> Iterator[ArgumentPattern]:
    """Return every `ArgumentPattern` in the arguments of a graph's nodes, in order."""
    for node in graph.nodes:
        yield from _argument_patterns_in((node.arguments, dict(node.keywords)))


def _argument_patterns_in(argument: object) -> Iterator[ArgumentPattern]:
    if isinstance(argument, ArgumentPattern):
        yield argument
    elif isinstance(argument, (tuple, list)):
        if sum(isinstance(item, Variadic) for item in argument) > 1:
            raise PassError(f"two lists of open length in one list: {argument!r}")
        for item in argument:
            yield from _argument_patterns_in(item)
    elif isinstance(argument, dict):
        yield from _argument_patterns_in(tuple(argument.values()))
    elif isinstance(argument, slice):
        yield from _argument_patterns_in((argument.start, argument.stop, argument.step))


def _check(pattern: Pattern) -> dict[str, str]:
    """Refuse what cannot be meant. Returns what every name in the pattern stands for."""
    graph = pattern.graph
    if not graph.outputs:
        raise PassError(f"pattern {pattern.name!r} has no output")
    _check_alternatives(pattern)
    for value in graph.outputs:
        _check_output(pattern, value)
    for index, value in enumerate(graph.inputs):
        if not value.users:
            raise PassError(f"input {index} of pattern {pattern.name!r} is used nowhere in it")
    _check_needed(pattern)
    _check_control_edges(pattern)
    return _check_names(pattern)


def _check_alternatives(pattern: Pattern) -> None:
    """Check that a choice, choices among its alternatives opened, has not too many."""
    counts: dict[ir.Node, int] = {}
    for node in pattern.graph.find(ir.ONE_OF):
        items = [item.node if isinstance(item, ir.Value) else None for item in node.arguments]
        counts[node] = sum(counts.get(item, 1) if item is not None else 1 for item in items)
        if counts[node] > _MOST_ALTERNATIVES:
            raise PassError(
                f"pattern {pattern.name!r} has more than {_MOST_ALTERNATIVES} alternatives at "
                f"{node.name!r}"
            )


def _check_output(pattern: Pattern, value: ir.Value) -> None:
    agenda: list[object] = [value]
    while agenda:
        item = agenda.pop()
        if not isinstance(item, ir.Value):
            raise PassError(
                f"pattern {pattern.name!r} returns {value.name!r}, which may be {item!r}: only "
                "what an operator computes can be replaced"
            )
        if item.node.op_type == ir.ONE_OF:
            agenda.extend(item.node.arguments)


def _check_needed(pattern: Pattern) -> None:
    graph = pattern.graph
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


def _check_control_edges(pattern: Pattern) -> None:
    for node in pattern.graph.find(ir.ONE_OF):
        if node.control_inputs or node.control_users:
            raise PassError(
                f"pattern {pattern.name!r} has a control edge at {node.name!r}, which stands for "
                "alternatives: it must be said of each of them"
            )


def _check_names(pattern: Pattern) -> dict[str, str]:
    names: dict[str, str] = {}
    for item in argument_patterns(pattern.graph):
        kind = "a list of values" if isinstance(item, Variadic) else "an argument"
        if isinstance(item, (AnyValue, Constant, Variadic)) and item.name:
            _claim(names, item.name, kind, pattern.name)
    for node in pattern.graph.nodes:
        for value in node.outputs:
            constraint = pattern.constraint(value)
            for name in () if constraint is None else constraint.names:
                _claim(names, name, "a size", pattern.name)
        if node.op_type == ir.ONE_OF and node.meta["name"]:
            name = str(node.meta["name"])
            if name in pattern.choices:
                raise PassError(f"pattern {pattern.name!r} has two choices named {name!r}")
            _claim(names, name, "a choice", pattern.name)
            pattern.choices[name] = node
    return names


def _claim(names: dict[str, str], name: str, kind: str, pattern: str) -> None:
    if names.setdefault(name, kind) != kind:
        raise PassError(
            f"the name {name!r} stands for {names[name]} and for {kind} in pattern {pattern!r}"
        )
