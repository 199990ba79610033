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
from bringup.passes.matching.native_matcher import FoundMatch
from bringup.passes.patterns.elements import AnyValue, Constant
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
    """A library's pass of any kind: one native instance, made when the first hook is called."""

    _registration: Any
    instance_id: int
    _made: NativeInstance | None = None

    @property
    def _instance(self) -> NativeInstance:
        if self._made is None:
            self._made = NativeInstance(self._registration, self.instance_id)
        return self._made

    def _call(self, hook: str, graph: ir.Graph, context: PassContext, *subject: object) -> Any:
        self._instance.set_options(dict(context.options))
        called = getattr(self._instance, hook)
        return called(graph.core, LibraryHost(graph.dialect), *subject)


class _NativeGraphPass(_Native, FusionBasePass):
    def run(self, graph: ir.Graph, context: PassContext) -> int:
        status: int = self._call("run", graph, context)
        return status


class _NativeDecomposePass(_Native, DecomposePass):
    def meet_requirements(self, node: ir.Node, context: PassContext) -> bool:  # type: ignore[override]
        met: bool = self._call("meet_node", node.graph, context, node)
        return met

    def replacement(self, node: ir.Node, context: PassContext) -> ir.Graph:  # type: ignore[override]
        made: ir.Graph = self._call("replace_node", node.graph, context, node)
        return made


class _NativePatternPass(_Native, PatternFusionPass):
    def patterns(self) -> list[Pattern]:
        patterns = self._instance.patterns(LibraryHost(ir.current_dialect()))
        names = [pattern.name for pattern in patterns]
        for name in names:
            if names.count(name) > 1:
                raise PassError(f"two patterns are called {name!r}")
        return patterns

    def meet_requirements(self, match_result: FoundMatch, context: PassContext) -> bool:  # type: ignore[override]
        met: bool = self._call("meet_match", match_result.graph, context, match_result.core)
        return met

    def replacement(self, match_result: FoundMatch, context: PassContext) -> ir.Graph:  # type: ignore[override]
        made: ir.Graph = self._call("replace_match", match_result.graph, context, match_result.core)
        return made


_BASES: dict[str, type[FusionBasePass]] = {
    "fusion_base": _NativeGraphPass,
    "pattern_fusion": _NativePatternPass,
    "decompose": _NativeDecomposePass,
}


class LibraryHost:
    """What the engine asks Python while a hook of a library runs, and what it has Python make of a
    graph or pattern that the hook made.

    Args:
        dialect: of the graph that is being rewritten.
    """

    any_value = AnyValue
    constant_value = Constant
    variadic = Variadic

    def __init__(self, dialect: ir.Dialect | None) -> None:
        self._dialect = dialect

    # Questions about the graph that is being rewritten

    def bind(self, op_type: str, arguments: tuple[object, ...]) -> tuple[ir.Operator, Any]:
        """The operator and all its arguments in schema order."""
        if self._dialect is None:
            return ir.Operator(op_type), arguments
        return self._dialect.bind(op_type, arguments, {})

    def infer(self, node: ir.Node) -> None:
        """Describe the outputs of a node that is new or has another argument."""
        node.graph.shape_again(node)

    def supports(self, node: ir.Node) -> tuple[bool, str]:
        """Whether the node can be executed, and if not, why."""
        return (True, "") if self._dialect is None else self._dialect.supports(node)

    def constant(self, node: ir.Node, data: tuple[str, tuple[int, ...], bytes]) -> None:
        """Give a constant that the library made its payload and meta."""
        payload = self.payload(*data)
        node.payload = payload
        if self._dialect is not None:
            node.graph.set_meta(node.output, self._dialect.constant_meta(payload))

    # Building what a library made

    def graph(self, name: str) -> ir.Graph:
        """Return an empty graph, whose operators are bound as they are inserted."""
        return ir.Graph(name, self._dialect)

    def payload(self, dtype: str, shape: tuple[int, ...], data: bytes) -> object:
        """Return the payload of a constant with these data."""
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
        """Return the pattern of a graph."""
        return Pattern(graph, name, constant_values=constant_values, attributes=attributes)
