"""The three kinds of passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from bringup import ir
from bringup.errors import PassError
from bringup.passes.definition.context import PassContext
from bringup.passes.definition.expressions import configure, pattern_of
from bringup.passes.definition.hooks import (
    Hook,
    check_arity,
    expression_or_subject_hook,
    subject_hook,
)
from bringup.passes.patterns.matcher_config import PatternMatcherConfig
from bringup.passes.patterns.pattern import Pattern

if TYPE_CHECKING:
    from bringup.passes.patterns.match import MatchResult

Method = TypeVar("Method", bound=Callable[..., Any])


class FusionBasePass:
    """A pass that edits the graph as it likes.

    All edits are undone when `run` raises or returns a failure. Every run on every graph has a
    fresh instance.
    """

    instance_id: int = 0
    """The number of this run, unique in the process; set before the first hook is called."""

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__(**keywords)
        check_arity(cls, "run", ("graph", "context"))

    def run(self, graph: ir.Graph, context: PassContext) -> bool | int | None:
        """Edit `graph`. Return None, True or 0 for success, False or another number for
        failure.

        `context` has the options of the compile and takes the reason of a failure. A subclass
        has to define this; without it, it raises `NotImplementedError`.
        """
        raise NotImplementedError(f"{type(self).__qualname__} does not define run(graph, context)")


class PatternFusionPass(FusionBasePass):
    """A pass that replaces every occurrence of its patterns.

    Give patterns either as `patterns()` or as methods decorated with `@passes.pattern`.

    Args:
        matcher_config: how its patterns are compared; None compares everything.

    Raises:
        TypeError: `matcher_config` is something else, e.g. a builder that was not built.
    """

    hooks: ClassVar[Mapping[str, Hook]] = MappingProxyType({})

    def __init__(self, matcher_config: PatternMatcherConfig | None = None) -> None:
        if matcher_config is not None and not isinstance(matcher_config, PatternMatcherConfig):
            raise TypeError(
                "matcher_config must be a PatternMatcherConfig (call build() on its builder), "
                f"got {matcher_config!r}"
            )
        self._matcher_config = matcher_config

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__(**keywords)
        _refuse_run(cls)
        methods = pattern_methods(cls)
        if methods and cls.patterns is not PatternFusionPass.patterns:
            raise TypeError(
                f"{cls.__qualname__} defines patterns() and has @pattern methods, its own or "
                f"inherited ({', '.join(methods)}): choose one"
            )
        check_arity(cls, "patterns", ())
        for name in methods:
            check_arity(cls, name, ("inputs",))
        cls.hooks = MappingProxyType(
            {
                "meet_requirements": subject_hook(cls, "meet_requirements", "match_result"),
                "replacement": expression_or_subject_hook(cls, "replacement", "match_result"),
            }
        )

    @property
    def matcher_config(self) -> PatternMatcherConfig | None:
        """Return how the patterns of this pass are compared; None compares everything."""
        return getattr(self, "_matcher_config", None)

    def patterns(self) -> Sequence[ir.Graph | Pattern] | ir.Graph | Pattern:
        """Return the patterns, each a graph whose inputs stand for any value; of a class with
        `@passes.pattern` methods what these state, as `Pattern`s.

        Raises `NotImplementedError` when the class has neither.
        """
        methods = pattern_methods(type(self))
        if methods:
            return [pattern_of(self, name, ir.current_dialect()) for name in methods]
        raise NotImplementedError(
            f"{type(self).__qualname__} defines neither patterns() nor a method decorated with "
            "@passes.pattern"
        )

    def meet_requirements(self, match_result: MatchResult) -> bool:
        """Return whether the occurrence `match_result` shall be rewritten; always, unless a
        subclass says more. May take the context as a second parameter.
        """
        return True

    def replacement(self, match_result: MatchResult) -> Any:
        """Return what to put in place of the match: a graph, or the holder(s) of its output(s).

        Its inputs are those of the pattern, in order; its outputs replace the pattern's, in order.
        Takes `(match_result)`, `(match_result, context)`, or, with inputs that are made when first
        asked for, `(inputs)`, `(inputs, match_result)`, `(inputs, context)` or
        `(inputs, match_result, context)`.

        A subclass has to define this; without it, it raises `NotImplementedError`.
        """
        raise NotImplementedError(
            f"{type(self).__qualname__} does not define replacement(match_result)"
        )


class DecomposePass(FusionBasePass):
    """A pass that replaces single operators of the types it is registered for.

    The inputs of the replacement are the node's inputs, in order; its outputs replace the node's,
    in order.
    """

    op_types: ClassVar[tuple[str, ...]] = ()
    hooks: ClassVar[Mapping[str, Hook]] = MappingProxyType({})

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__(**keywords)
        _refuse_run(cls)
        cls.hooks = MappingProxyType(
            {name: subject_hook(cls, name, "node") for name in ("meet_requirements", "replacement")}
        )

    def meet_requirements(self, node: ir.Node) -> bool:
        """Return whether to replace this node; may take the context as a second parameter."""
        return True

    def replacement(self, node: ir.Node) -> Any:
        """Return what to put in place of the node: a graph, or the holder(s) of its output(s).

        May take the context as a second parameter.

        A subclass has to define this; without it, it raises `NotImplementedError`.
        """
        raise NotImplementedError(f"{type(self).__qualname__} does not define replacement(node)")


def pattern(method: Method) -> Method:
    """Return a method `(self, inputs) -> holder(s)`, marked as a pattern of a `PatternFusionPass`.

    `inputs[0]`, `inputs[1]`, ... make the pattern's inputs when first asked for; inputs, then
    outputs, are captured in this order. Subclasses inherit it.
    """
    method._bringup_pattern = True  # type: ignore[attr-defined]
    return method


def pattern_methods(cls: type) -> list[str]:
    """Return a class's `@pattern` methods, its bases' first, without those overridden."""
    found: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        found.update(vars(base))
    return [name for name, item in found.items() if getattr(item, "_bringup_pattern", False)]


def _refuse_run(cls: type) -> None:
    if "run" in vars(cls):
        raise TypeError(
            f"{cls.__qualname__} must not define run: a {cls.__mro__[1].__name__} is driven by its "
            "hooks; derive from FusionBasePass to write run yourself"
        )


def patterns_of(graph: ir.Graph, instance: PatternFusionPass) -> list[Pattern]:
    """Return an instance's patterns for `graph`. Raises `PassError` for none or a released one."""
    methods = pattern_methods(type(instance))
    if methods:
        return [pattern_of(instance, name, graph.dialect) for name in methods]
    given = instance.patterns()
    listed = given if isinstance(given, (tuple, list)) else [given]
    patterns = [item if isinstance(item, Pattern) else Pattern(item) for item in listed]  # type: ignore[arg-type]
    if not patterns:
        raise PassError(f"{type(instance).__qualname__}.patterns() returned no pattern")
    for pattern in patterns:
        if not pattern.is_valid():
            raise PassError(
                f"{type(instance).__qualname__}.patterns() returned the pattern "
                f"{pattern.name!r}, which was released"
            )
        configure(pattern, graph.dialect, instance.matcher_config)
    return patterns
