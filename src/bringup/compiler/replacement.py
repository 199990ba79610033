"""Rewrites stated as two torch functions: what to look for, and what to put there.

`search` becomes a pattern of `passes` when it is registered, with all open that comes from sizes.
At a match both functions are traced again on fake tensors like the match's own: `search` must give
exactly what matched, and `replace` gives what takes its place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor

from bringup import ir, passes
from bringup._numbers import identity, same_number
from bringup.compiler.aten import AtenDialect
from bringup.compiler.fake_results import expression, look
from bringup.compiler.traced_function import TracedFunction, parameters_of, symbolic_inputs
from bringup.errors import PassError, PassSkipException
from bringup.ir.node import map_argument, values_in

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from bringup.passes.registry.registering import PassSettings


Check = Callable[[passes.MatchResult], bool]


def register_replacement(
    search: Callable[..., Any],
    replace: Callable[..., Any],
    example_inputs: Sequence[torch.Tensor] = (),
    *,
    name: str = "",
    stage: passes.PassStage = passes.PassStage.AFTER_INFER_SHAPE,
    extra_check: Check | None = None,
    scalar_workaround: Mapping[str, float] | None = None,
    **settings: Unpack[PassSettings],
) -> type[passes.PatternFusionPass]:
    """Register a pass that puts `replace` wherever a graph does what `search` does. Returns its
    class.

    Both are torch functions of the same parameters, traced here, and again for each match with
    other shapes, dtypes, devices or strides. A match is left alone, with the reason in the report,
    where `search` is other operators there, `replace` cannot be traced, or their results differ in
    form.

    Args:
        search: takes tensors, returns one or several. Numbers in it are matched as they are, and so
            are parameters that have a default.
        replace: takes the same parameters; it need not use them all.
        example_inputs: one tensor for each parameter without a default, of the rank and dtype to
            expect. Sizes do not matter, but 1 stays 1. Without them each is a float32 matrix.
        name: of the pass; the function's name by default, of a lambda its file and line.
        stage: when it runs.
        extra_check: asked for every match whether it shall be rewritten; it may raise
            `passes.PassSkipException` with a reason.
        scalar_workaround: parameters that are numbers, each with a value to trace with that stands
            nowhere else in `search`. They match any number; `match_result[name]` has it.
        settings: as in `passes.register_fusion_pass`: priority, version, requires, after, ...

    Raises:
        TypeError: no function, parameters that cannot be given by position, or that differ.
        PassError: a function cannot be traced, writes inputs, depends on data or uses a tensor of
            its own; `search` does not use an input; results of both differ.
        ValueError: the name is taken, or a setting has a value that it cannot take.
    """
    scalars = dict(scalar_workaround or {})
    _require_same_parameters(search, replace)
    wanted = TracedFunction(search, "search", scalars)
    instead = TracedFunction(replace, "replace", scalars)
    _require_count(wanted, example_inputs)
    inputs = symbolic_inputs(example_inputs, len(wanted.tensors))
    mode = inputs[0].fake_mode
    try:
        found = wanted.at(inputs, scalars, mode, may_guard=True)
        other = instead.at(inputs, scalars, mode, may_guard=True)
        if difference := _difference_of_results(AtenDialect(mode), found.outputs, other.outputs):
            raise PassError(
                f"{instead.text} returns something else than {wanted.text}: {difference}"
            )
        pattern = _pattern_of(found, wanted, scalars)
    except PassError as error:
        if example_inputs:
            raise
        raise PassError(
            f"{error}\n(traced on {len(inputs)} float32 matrices; example_inputs says what to "
            "expect instead)"
        ) from error
    called = name or _name_of(search)
    cls = type(
        called,
        (_Replacement,),
        {
            "__doc__": inspect.getdoc(search),
            "__module__": search.__module__,
            # registering the same class of the same file again would do nothing, silently
            "__qualname__": f"{_identity(search)} -> {_identity(replace)}",
            "_search": wanted,
            "_instead": instead,
            "_pattern": pattern,
            "_scalars": tuple(scalars),
            "_extra_check": staticmethod(extra_check or (lambda match_result: True)),
        },
    )
    return passes.register_fusion_pass(name=called, stage=stage, **settings)(cls)


class _Replacement(passes.PatternFusionPass):
    """The pass of one `register_replacement`; an instance has the traces of one run."""

    _search: ClassVar[TracedFunction]
    _instead: ClassVar[TracedFunction]
    _pattern: ClassVar[passes.Pattern]
    _scalars: ClassVar[tuple[str, ...]]
    _extra_check: ClassVar[Check]

    def __init__(self) -> None:
        super().__init__()
        self._traces: dict[tuple[object, ...], ir.Graph | PassError] = {}

    def patterns(self) -> passes.Pattern:
        return self._pattern

    def meet_requirements(self, match_result: passes.MatchResult) -> bool:
        traced = self._traced(self._search, match_result)
        if difference := _difference_of_match(self._pattern, match_result, traced):
            raise PassSkipException(
                f"{self._search.text} is something else on inputs like these: {difference}"
            )
        return bool(type(self)._extra_check(match_result))

    def replacement(self, match_result: passes.MatchResult) -> ir.Graph:
        traced = self._traced(self._instead, match_result)
        dialect = _dialect_of(match_result)
        if difference := _difference_of_results(dialect, match_result.outputs, traced.outputs):
            raise PassSkipException(
                f"{self._instead.text} returns something else here: {difference}"
            )
        return _with_sizes(traced, dialect)

    def _traced(self, function: TracedFunction, match_result: passes.MatchResult) -> ir.Graph:
        """Return what a function is at a match. Raises `PassSkipException` where it is nothing."""
        scalars = {name: match_result[name] for name in self._scalars}
        if name := next((key for key, item in scalars.items() if not _is_number(item)), None):
            raise PassSkipException(f"{name!r} is no number before the graph runs")
        metas = _metas_of(function, match_result)
        mode = _dialect_of(match_result).mode_for(metas)
        key = (function.text, repr(scalars), *map(_traits, metas))
        found = self._traces.get(key)
        if found is None:
            fakes = [_of_mode(mode, meta) for meta in metas]
            try:
                found = function.at(fakes, scalars, mode)
            except PassError as error:
                found = error
            self._traces[key] = found
        if isinstance(found, PassError):
            raise PassSkipException(str(found)) from found
        return found


def _name_of(function: Callable[..., Any]) -> str:
    if function.__name__ != "<lambda>":
        return function.__name__
    code: Any = function.__code__
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def _identity(function: Callable[..., Any]) -> str:
    """Return what tells a function from others of its file: name, line, and what it encloses."""
    inner: Any = getattr(function, "__func__", function)
    line = inner.__code__.co_firstlineno
    enclosed = [cell.cell_contents for cell in inner.__closure__ or ()]
    values = "".join(f", {item if _is_number(item) else id(item)}" for item in enclosed)
    return f"{inner.__qualname__}({line}{values})"


def _require_same_parameters(search: Callable[..., Any], replace: Callable[..., Any]) -> None:
    """Require the same names, order and defaults of parameters."""
    wanted, given = parameters_of(search, "search"), parameters_of(replace, "replace")
    if identity(list(wanted.items())) != identity(list(given.items())):
        raise TypeError(
            "search and replace must have the same parameters, by name, order and default: "
            f"got {inspect.signature(search)} and {inspect.signature(replace)}"
        )


def _require_count(function: TracedFunction, examples: Sequence[torch.Tensor]) -> None:
    if not all(isinstance(item, torch.Tensor) for item in examples):
        raise TypeError(f"example_inputs must be tensors, got {list(map(type, examples))}")
    if examples and len(examples) != len(function.tensors):
        raise TypeError(
            f"example_inputs: {function.text} takes the {len(function.tensors)} tensors "
            f"{list(function.tensors)}, got {len(examples)}"
        )


def _pattern_of(
    traced: ir.Graph, function: TracedFunction, scalars: Mapping[str, float]
) -> passes.Pattern:
    """Return the pattern of a trace on symbolic sizes: what is made of them is open."""
    found: set[str] = set()

    def argument_of(node: ir.Node, parameter: str, argument: object) -> object:
        for name, number in scalars.items():
            if same_number(argument, number):
                found.add(name)
                return passes.any_value(name)
        is_size = any(not isinstance(value.meta, torch.Tensor) for value in values_in(argument))
        return passes.any_value(f"{node.name}.{parameter}") if is_size else argument

    # a dialect of its own: it would keep the fake tensors of the trace
    graph = _rebuilt(traced, AtenDialect(), argument_of)
    for name in scalars.keys() - found:
        raise PassError(
            f"{function.text}: no operator takes the number {name!r} as it is ({scalars[name]!r})"
        )
    outputs = graph.outputs
    if len(set(outputs)) < len(outputs):
        raise PassError(f"{function.text} returns the same tensor twice")
    for name, value in zip(function.tensors, graph.inputs, strict=True):
        if not value.users:
            raise PassError(f"{function.text} does not use the values of {name!r}")
    return passes.Pattern(graph, getattr(function.function, "__name__", ""))


def _with_sizes(traced: ir.Graph, dialect: AtenDialect) -> ir.Graph:
    """Return a trace whose sizes are found, or computed, where it is put into a graph."""

    def argument_of(node: ir.Node, parameter: str, argument: object) -> object:
        values = [
            value for value in values_in(argument) if not isinstance(value.meta, torch.Tensor)
        ]
        sizes = {value: dialect.as_size(value.meta) for value in values}
        if None in sizes.values():
            raise PassSkipException(
                f"argument {parameter!r} of {node.op_type} is a number made of sizes that differ "
                "from call to call, and no size itself"
            )
        return map_argument(argument, cast("Mapping[Any, object]", sizes))

    return _rebuilt(traced, dialect, argument_of)


def _rebuilt(
    traced: ir.Graph, dialect: AtenDialect, argument_of: Callable[[ir.Node, str, object], object]
) -> ir.Graph:
    """Return the tensor operators of a trace with numbers exchanged for values."""
    graph = ir.Graph(traced.name, dialect)
    copies: dict[Any, object] = {value: graph.add_input(value.name) for value in traced.inputs}
    for node in _computing(traced):
        names = [parameter.name for parameter in node.operator.parameters]
        arguments = tuple(
            map_argument(argument_of(node, name, argument), copies)
            for name, argument in zip(names, node.arguments, strict=True)
        )
        copy = graph.insert_call(node.operator, arguments, output_count=len(node.outputs))
        copies.update(zip(node.outputs, copy.outputs, strict=True))
    graph.set_outputs(*[copies[value] for value in traced.outputs])
    return graph


def _computing(graph: ir.Graph) -> list[ir.Node]:
    return [
        node
        for node in graph.nodes
        if node.op_type not in (ir.INPUT, ir.OUTPUT)
        and any(isinstance(value.meta, torch.Tensor) for value in node.outputs)
    ]


def _difference_of_match(
    pattern: passes.Pattern, match_result: passes.MatchResult, traced: ir.Graph
) -> str:
    """Return how matched nodes differ from the trace of `search` on their inputs, or ""."""
    nodes = [node for node in pattern.graph.nodes if node.op_type not in (ir.INPUT, ir.OUTPUT)]
    twins = _computing(traced)
    if [node.op_type for node in nodes] != [twin.op_type for twin in twins]:
        return f"{', '.join(twin.op_type for twin in twins)}"
    places: dict[Any, object] = dict(zip(traced.inputs, pattern.graph.inputs, strict=True))
    bound, dialect = match_result.bound_nodes(), _dialect_of(match_result)
    for node, twin in zip(nodes, twins, strict=True):
        places.update(zip(twin.outputs, node.outputs, strict=True))
        for index, parameter in enumerate(node.operator.parameters):
            argument, expected = node.arguments[index], map_argument(twin.arguments[index], places)
            if isinstance(argument, passes.AnyValue):
                argument = bound[node].arguments[index]
            if not _is_same(dialect, argument, expected):
                return (
                    f"{parameter.name!r} of {twin.op_type} is {ir.argument_text(expected)}, "
                    f"of {bound[node].name!r} {ir.argument_text(argument)}"
                )
    return ""


def _is_same(dialect: AtenDialect, left: object, right: object) -> bool:
    """Return whether two arguments are the same value of the pattern or the same size."""
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(
            _is_same(dialect, *pair) for pair in zip(left, right, strict=True)
        )
    if left is right:
        return True
    one, other = (item.size if isinstance(item, ir.Value) else item for item in (left, right))
    return not isinstance(one, ir.Value) and dialect.same(one, other)


def _difference_of_results(
    dialect: AtenDialect, expected: Sequence[ir.Value], got: Sequence[ir.Value]
) -> str:
    """Return how results differ, or ""."""
    if len(expected) != len(got):
        return f"expected {len(expected)} tensors, got {len(got)}"
    for index, (old, new) in enumerate(zip(expected, got, strict=True)):
        if difference := dialect.difference(old.meta, new.meta):
            return f"result {index}: {difference}"
    return ""


def _metas_of(function: TracedFunction, match_result: passes.MatchResult) -> list[torch.Tensor]:
    metas = []
    for name, value in zip(function.tensors, match_result.inputs, strict=True):
        meta = None if value is None else value.meta
        if not isinstance(meta, torch.Tensor):
            raise PassSkipException(f"{name!r} is no tensor, or its shape is not known yet")
        metas.append(meta)
    return metas


def _traits(meta: torch.Tensor) -> tuple[object, ...]:
    """Return all that a trace may depend on."""
    return (look(meta), expression(meta.storage_offset()), meta.is_conj(), meta.is_neg())


def _of_mode(mode: Any, meta: torch.Tensor) -> torch.Tensor:
    if isinstance(meta, FakeTensor) and meta.fake_mode is mode:
        return meta
    return cast(torch.Tensor, mode.from_tensor(meta, static_shapes=True))


def _dialect_of(match_result: passes.MatchResult) -> AtenDialect:
    dialect = match_result.outputs[0].node.graph.dialect
    if not isinstance(dialect, AtenDialect):
        raise PassSkipException("the graph is not made of ATen operators")
    return dialect


def _is_number(item: object) -> bool:
    return isinstance(item, (bool, int, float))
