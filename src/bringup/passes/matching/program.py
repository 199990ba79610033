"""A pattern made ready for the native engine: once, until something about it changes."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from bringup import ir
from bringup.passes.engine import PatternCore, ProgramCore
from bringup.passes.patterns.elements import AnyValue, ArgumentPattern, Constant
from bringup.passes.patterns.pattern import Pattern, Variadic, argument_patterns


@dataclass(frozen=True)
class SubPattern:
    """A pattern of a program and the names of its slots, in the order of the pattern's graph."""

    pattern: Pattern
    choices: tuple[ir.Node, ...]
    names: tuple[str, ...]
    sizes: tuple[str, ...]
    lists: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """A compiled pattern: the pattern itself, then what the items of its lists must be."""

    core: ProgramCore
    subs: tuple[SubPattern, ...]

    @functools.cached_property
    def has_arguments(self) -> bool:
        """Return whether a match holds arguments of the graph's nodes, beside nodes and values."""
        return any(sub.names or sub.sizes or sub.lists for sub in self.subs)


def program_of(pattern: Pattern) -> Program:
    """Return a pattern's program, made again if it changed. Raises `PassError` if it cannot."""
    state = (pattern.attributes, pattern.constant_values, pattern.graph.dialect)
    known = pattern.compiled
    if known is None or known[0] != state:
        known = (state, _compile(pattern))
        pattern.compiled = known
    program = known[1]
    assert isinstance(program, Program)
    return program


def _compile(pattern: Pattern) -> Program:
    known: dict[int, Pattern] = {}
    core = ProgramCore(_core_of(pattern, known))
    subs = []
    for address, *tables in core.layout():
        sub = known[address]
        subs.append(SubPattern(sub, sub.graph.find(ir.ONE_OF), *tables))
    return Program(core, tuple(subs))


def _core_of(pattern: Pattern, known: dict[int, Pattern]) -> PatternCore:
    graph = pattern.graph
    values = [value for node in graph.nodes for value in node.outputs]
    constraints = [
        (value, stated.dtypes, stated.ranks, stated.shape, stated.devices)
        for value in values
        if (stated := pattern.constraint(value)) is not None
    ]
    core = PatternCore(
        graph._core,
        pattern.name,
        pattern.constant_values,
        pattern.attributes,
        [_open_argument(item, known) for item in argument_patterns(graph)],
        constraints,
        [(node, name) for name, node in pattern.choices.items()],
        pattern.captured,
        list(pattern.capture_names.items()),
        pattern.library_values,
    )
    known[core.address] = pattern
    return core


def _open_argument(
    item: ArgumentPattern, known: dict[int, Pattern]
) -> tuple[ArgumentPattern, str, tuple[object, ...], str]:
    if isinstance(item, AnyValue):
        among = None if item.among is None else list(item.among)
        members: tuple[object, ...] = (item.name, item.kinds, among, item.at_least, item.at_most)
        return item, "any", members, repr(item)
    if isinstance(item, Constant):
        members = (item.name, item.values, item.shape, item.atol, item.rtol)
        return item, "constant", members, repr(item)
    assert isinstance(item, Variadic)
    each = None if item.each is None else _core_of(item.each, known)
    return item, "variadic", (item.name, item.at_least, item.at_most, each), repr(item)
