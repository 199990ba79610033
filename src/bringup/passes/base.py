"""The three kinds of passes, their stages and their context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from bringup import ir

if TYPE_CHECKING:
    from bringup.passes.match import MatchResult
    from bringup.passes.patterns import Pattern

__all__ = [
    "DecomposePass",
    "FusionBasePass",
    "PassContext",
    "PassStage",
    "PatternFusionPass",
    "pattern",
    "pattern_methods",
]

Method = TypeVar("Method", bound=Callable[..., Any])


class PassStage(str, Enum):
    """When a pass runs, in this order. A graph that comes from FX has its shapes at every stage."""

    BEFORE_INFER_SHAPE = "BeforeInferShape"
    AFTER_INFER_SHAPE = "AfterInferShape"
    AFTER_BUILTIN_FUSION_PASS = "AfterBuiltinFusionPass"
    AFTER_ORIGIN_GRAPH_OPTIMIZE = "AfterOriginGraphOptimize"


@dataclass
class PassContext:
    """What a pass is told about its run.

    Attributes:
        pass_name: the name it was registered under.
        stage: the stage it runs in.
        options: the options of the compile; see `get_option_value`.
        error_message: set by a pass that returns a failure status, to say why.
    """

    pass_name: str
    stage: PassStage
    options: Mapping[str, object] = field(default_factory=dict)
    error_message: str = ""

    def get_option_value(self, key: str) -> object:
        """An option of the compile; `KeyError` that lists the options when there is none."""
        if key not in self.options:
            raise KeyError(f"there is no option {key!r}; this compile has {sorted(self.options)}")
        return self.options[key]

    def set_error_message(self, message: str) -> None:
        """Why the pass failed; becomes part of the `PassError`."""
        self.error_message = message


class FusionBasePass:
    """A pass that edits the graph as it likes.

    All edits are undone when `run` raises or returns a failure.
    """

    def run(self, graph: ir.Graph, context: PassContext) -> bool | int | None:
        """Edit `graph`. Return None, True or 0 for success, False or another number for failure."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define run(graph, context)")


class PatternFusionPass(FusionBasePass):
    """A pass that replaces every occurrence of its patterns.

    Give patterns either as `patterns()` or as methods decorated with `@passes.pattern`.
    """

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__(**keywords)
        _refuse_run(cls)
        if pattern_methods(cls) and cls.patterns is not PatternFusionPass.patterns:
            raise TypeError(
                f"{cls.__qualname__} defines patterns() and has @pattern methods: choose one"
            )

    def patterns(self) -> Sequence[ir.Graph | Pattern] | ir.Graph | Pattern:
        """The patterns, each a graph whose inputs stand for any value."""
        raise NotImplementedError(
            f"{type(self).__qualname__} defines neither patterns() nor a method decorated with "
            "@passes.pattern"
        )

    def meet_requirements(self, match_result: MatchResult) -> bool:
        """Whether this match shall be rewritten."""
        return True

    def replacement(self, match_result: MatchResult) -> Any:
        """What to put in place of the match: a graph, or the holder(s) of its output(s).

        Its inputs are those of the pattern, in order; its outputs replace the pattern's, in order.
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

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__(**keywords)
        _refuse_run(cls)

    def meet_requirements(self, node: ir.Node) -> bool:
        """Whether this node shall be replaced."""
        return True

    def replacement(self, node: ir.Node) -> Any:
        """What to put in place of the node: a graph, or the holder(s) of its output(s)."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define replacement(node)")


def pattern(method: Method) -> Method:
    """Mark a method `(self, inputs) -> holder(s)` of a `PatternFusionPass` as one of its patterns.

    `inputs[0]`, `inputs[1]`, ... make the pattern's inputs when first asked for; inputs, then
    outputs, are captured in this order.
    """
    method._bringup_pattern = True  # type: ignore[attr-defined]
    return method


def pattern_methods(cls: type) -> list[str]:
    """The names of the `@pattern` methods that `cls` itself defines, in definition order."""
    return [name for name, item in vars(cls).items() if getattr(item, "_bringup_pattern", False)]


def _refuse_run(cls: type) -> None:
    if "run" in vars(cls):
        raise TypeError(
            f"{cls.__qualname__} must not define run: a {cls.__mro__[1].__name__} is driven by its "
            "hooks; derive from FusionBasePass to write run yourself"
        )
