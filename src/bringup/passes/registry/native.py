"""Passes of C and C++ libraries: ordinary pass classes whose hooks call those of the library.

The session, its statuses and checks are those of every pass; the library's code runs without the
GIL. `include/bringup/engine.h` is the contract.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bringup import ir
from bringup.errors import PassError, PluginError
from bringup.passes.definition.base import DecomposePass, FusionBasePass, PatternFusionPass
from bringup.passes.definition.context import PassContext
from bringup.passes.engine import NativeInstance, PassRegistration, native
from bringup.passes.patterns.elements import AnyValue, Constant
from bringup.passes.patterns.match import MatchResult
from bringup.passes.patterns.pattern import Pattern, Variadic

__all__ = ["load_library", "native_pass_class", "unload_library"]


def load_library(path: Path) -> list[PassRegistration]:
    """Load a library with passes, which registers them, all or none; returns them.

    Loading it again, unchanged, changes nothing. Raises `PluginError` when it cannot be loaded or
    one of its names is taken.
    """
    try:
        return native.load_pass_library(str(path))
    except (RuntimeError, ValueError, KeyError) as error:
        raise PluginError(f"library {path}: {error}") from error


def unload_library(path: Path) -> None:
    """Forget the passes of a library; it is closed when no run uses it any more."""
    native.unload_pass_library(str(path))


def native_pass_class(registration: PassRegistration) -> type[FusionBasePass]:
    """The class that stands for a library's pass in Python."""
    facts = registration.describe()
    return type(
        facts["class_qualname"],
        (_BASES[facts["kind"]],),
        {
            "__module__": facts["module_name"],
            "__qualname__": facts["class_qualname"],
            "__doc__": f"A pass of {facts['module_name']}.",
            "_registration": registration,
            "op_types": facts["op_types"],
        },
    )


class _Native:
    """What the three kinds share: one native instance, made when the first hook is called."""

    _registration: Any
    instance_id: int
    _made: Any = None

    def _instance(self, context: PassContext | None = None) -> Any:
        if self._made is None:
            self._made = NativeInstance(self._registration, self.instance_id)
        if context is not None:
            self._made.set_options(dict(context.options))
        return self._made


class _NativeGraphPass(_Native, FusionBasePass):
    def run(self, graph: ir.Graph, context: PassContext) -> int:
        status: int = self._instance(context).run(graph.core, _Answers(graph))
        return status


class _NativeDecomposePass(_Native, DecomposePass):
    def meet_requirements(self, node: ir.Node, context: PassContext) -> bool:  # type: ignore[override]
        graph = node.graph
        met: bool = self._instance(context).meet_node(graph.core, _Answers(graph), node)
        return met

    def replacement(self, node: ir.Node, context: PassContext) -> ir.Graph:  # type: ignore[override]
        graph = node.graph
        made = self._instance(context).replace_node(graph.core, _Answers(graph), node)
        return _Imported(made, graph.dialect).graph


class _NativePatternPass(_Native, PatternFusionPass):
    def patterns(self) -> list[Pattern]:
        self._imported: dict[str, _ImportedPattern] = {}
        for exported in self._instance().patterns():
            imported = _ImportedPattern(exported)
            if imported.pattern.name in self._imported:
                raise PassError(f"two patterns are called {imported.pattern.name!r}")
            self._imported[imported.pattern.name] = imported
        return [imported.pattern for imported in self._imported.values()]

    def meet_requirements(self, match_result: MatchResult, context: PassContext) -> bool:  # type: ignore[override]
        graph = match_result.get_matched_nodes()[0].graph
        found = self._found(match_result)
        met: bool = self._instance(context).meet_match(graph.core, _Answers(graph), found)
        return met

    def replacement(self, match_result: MatchResult, context: PassContext) -> ir.Graph:  # type: ignore[override]
        graph = match_result.get_matched_nodes()[0].graph
        found = self._found(match_result)
        made = self._instance(context).replace_match(graph.core, _Answers(graph), found)
        return _Imported(made, graph.dialect).graph

    def _found(self, match: MatchResult) -> dict[str, object]:
        return self._imported[match.pattern_name].facts(match)


class _ImportedPattern:
    """A pattern of a library, with what its hooks may ask a match for."""

    def __init__(self, exported: Any) -> None:
        name, graph, captured, names, constraints, choices, constant_values, attributes = exported
        imported = _Imported(graph, ir.current_dialect(), choices)
        for (_, node, index), *facts in constraints:
            value = imported.values[node, index]
            stated = value.node.meta.setdefault("where", {})
            assert isinstance(stated, dict), "only `where` writes it"
            stated[index] = ir.TensorConstraint(*facts)
        self.pattern = Pattern(
            imported.graph, name, constant_values=constant_values, attributes=attributes
        )
        self._values = imported.values
        self._items = imported.items
        by_place = {place[1:]: key for key, place in names.items()}
        for _, node, index in captured:
            key = by_place.get((node, index), "")
            self.pattern.capture_tensor(imported.values[node, index], name=key)

    def facts(self, match: MatchResult) -> dict[str, object]:
        """All that a hook may ask about a match of the pattern, items of its lists included."""
        values = {place: value for place, value in self._values.items() if match.has(value)}
        captured = self.pattern.captured
        return {
            "name": self.pattern.name,
            "nodes": match.get_matched_nodes(),
            "values": {place: match.value(value) for place, value in values.items()},
            "captured": [match.value(value) if match.has(value) else None for value in captured],
            "named": self._named(match, "an argument", "a list of values", "a capture"),
            "sizes": self._named(match, "a size"),
            "chosen": {
                name: number
                for name in self.pattern.choices
                if (number := match.chosen(name)) is not None
            },
            "items": {
                name: self._facts_of_items(match, name)
                for name in self._items
                if match.has_name(name)
            },
        }

    def _named(self, match: MatchResult, *kinds: str) -> dict[str, object]:
        return {
            name: match[name]
            for name, kind in self.pattern.names.items()
            if kind in kinds and match.has_name(name)
        }

    def _facts_of_items(self, match: MatchResult, name: str) -> list[dict[str, object]]:
        return [self._items[name].facts(item) for item in match.each(name)]


_OUTER = "ir::outer"  # in a replacement: a value of the graph that is being rewritten
_BASES: dict[str, type[FusionBasePass]] = {
    "fusion_base": _NativeGraphPass,
    "pattern_fusion": _NativePatternPass,
    "decompose": _NativeDecomposePass,
}


class _Answers:
    """What the engine asks while a library edits a graph of Python."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph

    def bind(self, op_type: str, arguments: tuple[object, ...]) -> tuple[ir.Operator, Any]:
        """The operator and all its arguments in schema order."""
        dialect = self._graph.dialect
        if dialect is None:
            return ir.Operator(op_type), arguments
        return dialect.bind(op_type, arguments, {})

    def infer(self, node: ir.Node) -> None:
        """Describe the outputs of a node that is new or has another argument."""
        self._graph.shape_again(node)

    def supports(self, node: ir.Node) -> tuple[bool, str]:
        """Whether the node can be executed, and if not, why."""
        dialect = self._graph.dialect
        return (True, "") if dialect is None else dialect.supports(node)

    def constant(self, node: ir.Node, data: tuple[str, tuple[int, ...], bytes]) -> None:
        """Give a constant that the library made its payload and meta."""
        dialect = self._graph.dialect
        payload = _payload(dialect, data)
        node.payload = payload
        if dialect is not None:
            self._graph.set_meta(node.output, dialect.constant_meta(payload))


def _payload(dialect: ir.Dialect | None, data: tuple[str, tuple[int, ...], bytes]) -> object:
    constant = ir.ConstantData(*data)
    return constant if dialect is None else dialect.constant_of(constant)


class _Imported:
    """A graph that a library made, as an `ir.Graph`.

    Its `values` are listed by node number and output of the former, `items` are the patterns of
    its lists. `choices` are the names of alternatives, by node number.
    """

    def __init__(
        self, exported: Any, dialect: ir.Dialect | None, choices: dict[int, str] | None = None
    ) -> None:
        name, nodes, outputs = exported
        self.graph = ir.Graph(name, dialect)
        self.values: dict[tuple[int, int], ir.Value] = {}
        self.items: dict[str, _ImportedPattern] = {}
        self._choices = choices or {}
        self._calls: dict[int, ir.Node] = {}
        for *node, _ in nodes:
            self._add(*node)
        for number, *_, sources in nodes:
            for source in sources:
                self.graph.add_control_edge(self._calls[source], self._calls[number])
        self.graph.set_outputs(*(self._argument(value) for value in outputs))

    def _add(
        self,
        number: int,
        op_type: str,
        name: str,
        arguments: tuple[object, ...],
        output_count: int,
        data: tuple[str, tuple[int, ...], bytes] | None,
    ) -> None:
        if op_type == ir.INPUT:
            added = self.graph.add_input(name)
            self.values[number, 0], self._calls[number] = added, added.node
        elif op_type == ir.CONSTANT:
            assert data is not None, "a library gives every constant its data"
            payload = _payload(self.graph.dialect, data)
            self.values[number, 0] = self.graph.add_constant(payload, name=name)
        elif op_type == _OUTER:
            (value,) = arguments
            assert isinstance(value, ir.Value), "it stands as itself"
            self.values[number, 0] = value
        else:
            given = tuple(self._argument(argument) for argument in arguments)
            if op_type == ir.ONE_OF:
                node = self.graph.insert_call(ir.Operator(op_type), given, output_count=1)
                node.meta["name"] = self._choices.get(number, "")
            else:
                node = self.graph.insert(op_type, given, output_count=output_count)
            self._calls[number] = node
            self.values.update({(number, value.index): value for value in node.outputs})

    def _argument(self, argument: object) -> object:
        if isinstance(argument, list):
            return tuple(self._argument(item) for item in argument)
        if not isinstance(argument, tuple):
            return argument
        kind, *fields = argument
        if kind == "value":
            return self.values[fields[0], fields[1]]
        if kind == "any":
            name, kinds, among, *bounds = fields
            listed = None if among is None else tuple(self._argument(item) for item in among)
            return AnyValue(name, kinds, listed, *bounds)
        if kind == "constant":
            return Constant(*fields)
        return self._list(*fields)

    def _list(self, name: str, at_least: int, at_most: int | None, exported: Any) -> Variadic:
        if exported is None:
            return Variadic(name, at_least, at_most)
        if name not in self.items:
            self.items[name] = _ImportedPattern(exported)
        return Variadic(name, at_least, at_most, self.items[name].pattern)
