"""The torch.compile backend "bringup": AOT autograd, passes on ATen, an inner compiler."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Any, cast

from torch._dynamo.backends import registry
from torch._dynamo.backends.common import aot_autograd

from bringup.compiler.apply import load_and_select, rewrite
from bringup.compiler.freeze import freeze_weights, watched, weights_of
from bringup.compiler.inner import INNER_COMPILERS, BoxedFunction
from bringup.errors import BringupError

__all__ = ["CompileOptions", "announce", "dynamo_backend"]


@dataclasses.dataclass(frozen=True)
class CompileOptions:
    """The options of `torch.compile(backend="bringup", options={...})`.

    Attributes:
        inner: what runs the rewritten graph: `eager` (its operators one by one) or `inductor`.
        capture: whether the compiled inference graph is captured with `bringup.graphs`.
        passes: names of the passes to run; None for all registered ones.
        freeze: whether the weights of an inference graph become constants that are folded once.
    """

    inner: str = "eager"
    capture: bool = False
    passes: Sequence[str] | None = None
    freeze: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, object] | None) -> CompileOptions:
        """The options, checked: `BringupError` names an unknown one or a value it cannot take."""
        given = dict(options or {})
        known = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                raise BringupError(f"backend 'bringup' has no option {name!r}; options are {known}")
        parsed = cls(**given)  # type: ignore[arg-type]
        if parsed.inner not in INNER_COMPILERS:
            raise BringupError(
                f"option 'inner' must be one of {list(INNER_COMPILERS)}, got {parsed.inner!r}"
            )
        for name in ("capture", "freeze"):
            if not isinstance(getattr(parsed, name), bool):
                raise BringupError(
                    f"option {name!r} must be True or False, got {getattr(parsed, name)!r}"
                )
        if parsed.capture:
            raise BringupError(
                "option 'capture' is not there yet: compile without it and capture the compiled "
                "model with graphs.capture"
            )
        return parsed


def dynamo_backend(
    module: Any,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, object] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile one Dynamo graph: what `torch.compile(model, backend="bringup", options=...)` calls.

    Raises `BringupError` for options it does not know and `PassError` when a pass fails.
    """
    parsed = CompileOptions.parse(options)
    if mode not in (None, "default"):
        raise BringupError(f"backend 'bringup' has no mode {mode!r}: use options")
    plugins, selected = load_and_select(parsed.passes)
    values = dataclasses.asdict(parsed)
    inner = INNER_COMPILERS[parsed.inner]
    weights = weights_of(module, example_inputs) if parsed.freeze else []

    def compile_inference(aten: Any, inputs: Sequence[Any]) -> BoxedFunction:
        frozen, constants = freeze_weights(aten, weights)
        rewrite(aten, selected, plugins, options=values, constants=constants)
        run = cast(BoxedFunction, inner(aten, inputs))
        return watched(run, frozen) if frozen else run

    def compile_training(aten: Any, inputs: Sequence[Any]) -> BoxedFunction:
        rewrite(aten, selected, plugins, options=values)
        return cast(BoxedFunction, inner(aten, inputs))

    compiler = aot_autograd(fw_compiler=compile_training, inference_compiler=compile_inference)
    return cast(Callable[..., Any], compiler(module, example_inputs))


def announce() -> None:
    """Make the name "bringup" known to torch.compile also where the package is not installed.

    Only the entry point is announced: torch loads it, and refuses to register a name twice.
    """
    entry = EntryPoint("bringup", "bringup.compiler:dynamo_backend", "torch_dynamo_backends")
    registry._BACKENDS.setdefault(entry.name, entry)
