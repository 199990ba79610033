"""The torch.compile backend "bringup": AOT autograd, passes on ATen, an inner compiler."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Any, cast

from torch import fx
from torch._dynamo.backends import registry

from bringup.compiler.apply import load_and_select, rewrite
from bringup.compiler.freeze import (
    Built,
    Weight,
    constants_of,
    freeze_weights,
    placed,
    refolding,
    watched,
    weights_of,
)
from bringup.compiler.inner import INNER_COMPILERS, BoxedFunction, computes, run_eagerly
from bringup.errors import BringupError
from bringup.passes import PassDescriptor, PluginReport

__all__ = ["CompileOptions", "announce", "dynamo_backend"]


@dataclasses.dataclass(frozen=True)
class CompileOptions:
    """The options of `torch.compile(backend="bringup", options={...})`.

    Attributes:
        inner: what runs the rewritten graph: `eager` (its operators one by one) or `inductor`.
        capture: whether the compiled inference graph is captured with `bringup.graphs`, once for
            each kind of call; with `eager` only. Training graphs are refused.
        max_captures: how many captures are kept for one graph; the one used longest ago makes room.
        passes: names of the passes to run; None for all registered ones.
        freeze: whether the weights of an inference graph become constants that are folded once.
        freeze_inference_tensors: whether weights made in inference mode are frozen too. They have
            no version counter: that they were written shows only by the elements that a call looks
            at. Without it they stay inputs, and a warning counts them.
        on_weight_change: what a call does after a frozen weight changed: `raise`, or `refold`
            (rewrite the graph with the new weights, then run; with `eager` only).
        pass_switch: passes switched on or off by name, `ALL` for all others.
        pass_versions: by name, the version of a pass to run instead of the newest.
        verify: whether every rewrite is run against what it replaces; None: as
            `BRINGUP_PASS_VERIFY` says.
        dump_passes: folder for the graphs before and after every pass; None: as
            `BRINGUP_PASS_DUMP` says.
    """

    inner: str = "eager"
    capture: bool = False
    max_captures: int = 8
    passes: Sequence[str] | None = None
    freeze: bool = False
    freeze_inference_tensors: bool = False
    on_weight_change: str = "raise"
    pass_switch: Mapping[str, bool] | None = None
    pass_versions: Mapping[str, str] | None = None
    verify: bool | None = None
    dump_passes: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, object] | None) -> CompileOptions:
        """The options, checked: `BringupError` names an unknown one or a value it cannot take."""
        given = dict(options or {})
        known = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                raise BringupError(f"backend 'bringup' has no option {name!r}; options are {known}")
        parsed = cls(**given)  # type: ignore[arg-type]
        parsed._check()
        return parsed

    def _check(self) -> None:
        for name, choices in (("inner", INNER_COMPILERS), ("on_weight_change", _ON_CHANGE)):
            if getattr(self, name) not in choices:
                raise BringupError(
                    f"option {name!r} must be one of {list(choices)}, got {getattr(self, name)!r}"
                )
        for name in ("capture", "freeze", "freeze_inference_tensors"):
            if not isinstance(getattr(self, name), bool):
                raise BringupError(
                    f"option {name!r} must be True or False, got {getattr(self, name)!r}"
                )
        if type(self.max_captures) is not int or self.max_captures < 1:
            raise BringupError(
                f"option 'max_captures' must be a number from 1, got {self.max_captures!r}"
            )
        if self.inner != "inductor":
            return
        if self.capture:
            raise BringupError(
                "option 'capture' needs inner='eager': a capture cannot see the kernels that "
                "Inductor generates"
            )
        if self.on_weight_change == "refold":
            raise BringupError("option 'on_weight_change'='refold' needs inner='eager'")


_ON_CHANGE = ("raise", "refold")


def dynamo_backend(
    module: Any,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, object] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile one Dynamo graph: what `torch.compile(model, backend="bringup", options=...)` calls.

    Args:
        module: the graph that Dynamo captured.
        example_inputs: its inputs, as fake tensors and symbolic sizes.
        options: those of `CompileOptions`, by name.
        mode: None or "default"; torch's other modes are not ours.

    Returns:
        What runs the graph.

    Raises:
        BringupError: an option or mode is not known.
        PassError: a pass failed.
    """
    # takes half a second to import, which whoever only applies passes need not wait for
    from torch._dynamo.backends.common import aot_autograd

    parsed = CompileOptions.parse(options)
    if mode not in (None, "default"):
        raise BringupError(f"backend 'bringup' has no mode {mode!r}: use options")
    plugins, selected = load_and_select(parsed.passes, dataclasses.asdict(parsed))
    compilation = _Compilation(parsed, plugins, selected, module, example_inputs)
    compiler = aot_autograd(
        fw_compiler=compilation.training, inference_compiler=compilation.inference
    )
    return cast(Callable[..., Any], compiler(module, example_inputs))


class _Compilation:
    """What AOT autograd calls back with the ATen graphs of one Dynamo graph."""

    def __init__(
        self,
        options: CompileOptions,
        plugins: PluginReport,
        selected: Sequence[PassDescriptor],
        module: Any,
        example_inputs: Sequence[Any],
    ) -> None:
        self._options = options
        self._values = dataclasses.asdict(options)
        self._plugins = plugins
        self._selected = selected
        self._name = _name_of(module)
        needed = options.freeze or options.capture
        self._weights = weights_of(module, example_inputs) if needed else []

    def inference(self, aten: Any, inputs: Sequence[Any]) -> BoxedFunction:
        """A graph that no gradient is asked of."""
        options = self._options
        known = placed(aten, self._weights)
        static = frozenset(weight.index for weight in known)
        original = fx.GraphModule(aten, _copied(aten.graph))

        def build(graph: Any, weights: Sequence[Weight]) -> Built:
            frozen, constants = freeze_weights(graph, weights)
            run = self._compile(graph, inputs, constants)
            if options.capture and computes(graph):
                run = self._captured(graph, run, static)
            return Built(run, frozen, constants_of(graph))

        built = build(aten, self._freezable(known) if options.freeze else [])
        if not built.frozen:
            return built.run
        if options.on_weight_change == "raise":
            return watched(built)
        return refolding(
            built,
            lambda weights: build(fx.GraphModule(original, _copied(original.graph)), weights),
        )

    def _freezable(self, weights: Sequence[Weight]) -> list[Weight]:
        if self._options.freeze_inference_tensors:
            return list(weights)
        counted = [weight for weight in weights if not weight.tensor.is_inference()]
        if len(counted) < len(weights):
            warnings.warn(
                f"option 'freeze': {len(weights) - len(counted)} of {len(weights)} weights of "
                f"{self._name} are inference tensors, which count no writes, and stay inputs; load "
                "the model outside inference mode, or say freeze_inference_tensors=True",
                stacklevel=2,
            )
        return counted

    def training(self, aten: Any, inputs: Sequence[Any]) -> BoxedFunction:
        """The forward or the backward graph of a function that gradients are asked of."""
        if self._options.capture:
            raise BringupError(
                f"option 'capture' takes inference graphs only, and {self._name} is compiled for "
                "training (an input or a parameter requires a gradient): call it under "
                "torch.no_grad(), or compile it without capture"
            )
        return self._compile(aten, inputs, frozenset())

    def _compile(
        self, aten: Any, inputs: Sequence[Any], constants: frozenset[str]
    ) -> BoxedFunction:
        selected: Sequence[PassDescriptor] = self._selected
        if self._options.inner == "eager":
            self._rewrite(aten, selected, constants)
            return run_eagerly(aten, inputs)
        from bringup.compiler.inductor import compile_with_inductor, passes_before_inductor

        self._rewrite(aten, passes_before_inductor(selected), constants)
        generated = compile_with_inductor(aten, inputs, selected, self._plugins, self._values)
        return cast(BoxedFunction, generated)

    def _rewrite(
        self, aten: Any, selected: Sequence[PassDescriptor], constants: frozenset[str]
    ) -> None:
        rewrite(aten, selected, self._plugins, options=self._values, constants=constants)

    def _captured(self, aten: Any, run: BoxedFunction, static: frozenset[int]) -> BoxedFunction:
        from bringup.compiler.captured import captured, refuse_input_writes

        refuse_input_writes(aten, self._name)
        return captured(run, self._name, static, self._options.max_captures)


def _copied(graph: Any) -> Any:
    copy = fx.Graph()
    copy.output(copy.graph_copy(graph, {}))
    copy.output_node().meta.update(graph.output_node().meta)
    return copy


def _name_of(module: Any) -> str:
    """The outermost module or function of a Dynamo graph, as its nodes remember it."""
    for node in module.graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if stack:
            _, kind = next(iter(stack.values()))
            return f"the graph of {getattr(kind, '__name__', str(kind).rpartition('.')[2])}"
    return "this graph"


def announce() -> None:
    """Make the name "bringup" known to torch.compile also where the package is not installed.

    Only the entry point is announced: torch loads it, and refuses to register a name twice.
    """
    entry = EntryPoint("bringup", "bringup.compiler:dynamo_backend", "torch_dynamo_backends")
    registry._BACKENDS.setdefault(entry.name, entry)
