"""A pattern of a part of a graph that repeats: to count it, and as text to paste into a pass."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from bringup import ir
from bringup.ir.node import values_in
from bringup.passes.matching.native_matcher import NativeMatcher
from bringup.passes.mining.growth import structure
from bringup.passes.patterns.elements import AnyValue
from bringup.passes.patterns.pattern import Pattern
from bringup.passes.report import NearMiss

_RESERVED = frozenset({"op", "inputs", "self", "passes", "torch"})
_NONE = object()


class MinedPattern:
    """The pattern that connected nodes in graph order are an occurrence of, whatever their numbers:
    `places` are all after `search`, `near_miss` is what came closest.
    """

    def __init__(self, nodes: Sequence[ir.Node]) -> None:
        self.example = tuple(nodes)
        inside = frozenset(nodes)
        self.outputs = [
            value
            for node in nodes
            for value in node.outputs
            if any(user not in inside for user in value.users)
        ]
        read = (value for node in nodes for value in _tensors(node) if value.node not in inside)
        self.inputs = list(dict.fromkeys(read))
        self.places: list[dict[ir.Node, ir.Node]] = []
        self.near_miss: NearMiss | None = None

    def interface(self) -> object:
        """Return what tells it from patterns of the same operators: what it reads and returns."""
        position = {node: index for index, node in enumerate(self.example)}
        number = {value: index for index, value in enumerate(self.inputs)}
        reads = tuple(
            tuple(number.get(value) for value in values_in((node.arguments, dict(node.keywords))))
            for node in self.example
        )
        return tuple((position[value.node], value.index) for value in self.outputs), reads

    def search(self, graph: ir.Graph) -> None:
        """Find all occurrences: `places` maps the nodes of the example to those of each."""
        built = ir.Graph("repeat", graph.dialect)
        copies: dict[ir.Value, object] = {value: built.add_input() for value in self.inputs}
        stands_for: dict[ir.Node, ir.Node] = {}
        for node in self.example:
            copy = built.insert_call(
                node.operator,
                tuple(_opened(item, copies) for item in structure(node)),
                {name: _opened(item, copies) for name, item in node.keywords.items()},
                output_count=len(node.outputs),
            )
            stands_for[copy] = node
            copies.update(zip(node.outputs, copy.outputs, strict=True))
        built.set_outputs(*(copies[value] for value in self.outputs))
        matcher = NativeMatcher(Pattern(built), graph, ir.AliasAnalysis(graph))
        self.places = [
            {stands_for[own]: found for own, found in candidate.result.bound_nodes().items()}
            for candidate in matcher.matches()
        ]
        self.near_miss = matcher.near_miss

    def text(self, name: str) -> str:
        return _Text(self).method(name)


def _tensors(node: ir.Node) -> Iterator[ir.Value]:
    return values_in((structure(node), dict(node.keywords)))


def _opened(argument: object, copies: Mapping[ir.Value, object]) -> object:
    """Return a pattern's argument for one of the graph; anything may stand where no value does."""
    if isinstance(argument, ir.Value):
        return copies[argument]
    if isinstance(argument, tuple) and next(values_in(argument), None) is not None:
        return tuple(_opened(item, copies) for item in argument)
    return AnyValue()


class _Text:
    def __init__(self, mined: MinedPattern) -> None:
        self._mined = mined
        self._names: set[str] = set(_RESERVED)
        self._values: dict[ir.Value, str] = {
            value: f"inputs[{index}]" for index, value in enumerate(mined.inputs)
        }
        self._open: set[str] = set()

    def method(self, name: str) -> str:
        lines = ["@passes.pattern", f"def {name}(self, inputs):", "    op = inputs[0].builder.op"]
        lines += [f"    {self._call(node)}" for node in self._mined.example]
        returned = [self._values[value] for value in self._mined.outputs]
        return "\n".join([*lines, f"    return {', '.join(returned)}"])

    def _call(self, node: ir.Node) -> str:
        given = [repr(node.op_type).replace("'", '"'), *self._arguments(node)]
        if node.operator.output_count is None:
            given.append(f"outputs={len(node.outputs)}")
        target = self._target(node.name)
        several = len(node.outputs) != 1 or node.operator.output_count is None
        for index, value in enumerate(node.outputs):
            self._values[value] = f"{target}[{index}]" if several else target
        return f"{target} = op({', '.join(given)})"

    def _arguments(self, node: ir.Node) -> list[str]:
        parameters = node.operator.parameters
        written: list[str] = []
        left_out = _left_out(node)
        by_name = False
        for index, tensors in enumerate(structure(node)):
            argument = _skeleton(node.arguments[index]) if tensors is None else tensors
            name = parameters[index].name if index < len(parameters) else f"argument_{index}"
            same = self._is_same(node, index)
            if same and index in left_out:
                by_name = True
                continue
            by_name = by_name or (index < len(parameters) and parameters[index].keyword_only)
            text = self._argument(argument, name, same)
            written.append(f"{name}={text}" if by_name else text)
        for name, argument in node.keywords.items():
            written.append(f"{name}={self._argument(argument, name, self._is_same(node, name))}")
        return written

    def _is_same(self, node: ir.Node, key: int | str) -> bool:
        """Return whether an argument of a node is the same in all places (values apart)."""
        first = _skeleton(_argument_of(node, key))
        return all(
            _equal(_skeleton(_argument_of(place[node], key)), first) for place in self._mined.places
        )

    def _argument(self, argument: object, name: str, same: bool) -> str:
        if isinstance(argument, ir.Value):
            return self._values[argument]
        if isinstance(argument, tuple) and next(values_in(argument), None) is not None:
            return f"[{', '.join(self._argument(item, name, same) for item in argument)}]"
        text = _literal(argument) if same else None
        return text if text is not None else f'passes.any_value("{_free(name, self._open)}")'

    def _target(self, name: str) -> str:
        return _free(re.sub(r"\W", "_", name), self._names)


def _free(name: str, taken: set[str]) -> str:
    base = f"_{name}" if name[:1].isdigit() or keyword.iskeyword(name) else name
    found, number = base, 1
    while found in taken:
        number += 1
        found = f"{base}_{number}"
    taken.add(found)
    return found


def _argument_of(node: ir.Node, key: int | str) -> object:
    return node.arguments[key] if isinstance(key, int) else node.keywords[key]


def _skeleton(argument: object) -> object:
    """Return an argument without the values in it."""
    if isinstance(argument, ir.Value):
        return _NONE
    if isinstance(argument, tuple):
        return tuple(_skeleton(item) for item in argument)
    return argument


def _equal(left: object, right: object) -> bool:
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(_equal, left, right))
    if type(left) is not type(right):
        return False
    return left is right or (_literal(left) is not None and _literal(left) == _literal(right))


def _literal(argument: object) -> str | None:
    """Python text for a host argument; None where there is none."""
    if isinstance(argument, float) and not math.isfinite(argument):
        return f'float("{argument}")'
    if argument is None or isinstance(argument, (bool, int, float, str)):
        return repr(argument)
    if isinstance(argument, tuple):
        items = [_literal(item) for item in argument]
        return None if None in items else f"[{', '.join(str(item) for item in items)}]"
    text = repr(argument)
    return text if re.fullmatch(r"torch\.\w+", text) else None


def _left_out(node: ir.Node) -> frozenset[int]:
    """Return the arguments of a node that are the defaults of its operator."""
    dialect, parameters = node.graph.dialect, node.operator.parameters
    if dialect is None or not parameters:
        return frozenset()
    given = dict(zip((item.name for item in parameters), node.arguments, strict=True))
    left_out: set[int] = set()
    for index in reversed(range(len(parameters))):
        fewer = {name: item for name, item in given.items() if name != parameters[index].name}
        try:
            operator, arguments = dialect.bind(node.op_type, (), fewer)
        except Exception:  # it is needed
            continue
        same = operator.type == node.op_type and len(arguments) == len(node.arguments)
        if same and all(
            one is other or _equal(_skeleton(one), _skeleton(other))
            for one, other in zip(arguments, node.arguments, strict=True)
        ):
            left_out.add(index)
            given = fewer
    return frozenset(left_out)
