"""The torch.compile backend "bringup": AOT autograd, passes on ATen, an inner compiler."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Any, cast

import torch
from torch import fx
from torch._dynamo.backends import registry

from bringup import settings
from bringup.compiler.apply import load_and_select, rewrite
from bringup.compiler.dynamo import NotFrozenError, owned_in_evaluation, when_compile_is_called
from bringup.compiler.freeze import (
    Built,
    Weight,
    constants_of,
    drop_unused_constants,
    freeze_weights,
    placed,
    refolding,
    watched,
    weights_of,
)
from bringup.compiler.in_place import write_inputs_in_place
from bringup.compiler.inner import BoxedFunction, computes, run_eagerly
from bringup.compiler.options import CompileOptions
from bringup.errors import BringupError, CaptureError
from bringup.passes import PassDescriptor, PluginReport

__all__ = ["announce", "dynamo_backend"]

_LOG = settings.logger("compiler")
_MOST_CHANGES = 2
"""How often the new content of one weight is folded, where freezing was not asked for."""


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
        mode: the same as the option of that name.

    Returns:
        What runs the graph.

    Raises:
        BringupError: an option or mode is not known.
        PassError: a pass failed.
    """
    # takes half a second to import, which whoever only applies passes need not wait for
    from torch._dynamo.backends.common import aot_autograd

    parsed = CompileOptions.parse(options, mode)
    plugins, selected = load_and_select(parsed.passes, parsed.for_passes())
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
        self._values = options.for_passes()
        self._plugins = plugins
        self._selected = selected
        self._name = _name_of(module)
        needed = options.may_freeze or options.captures
        self._weights = weights_of(module, example_inputs) if needed else []
        self._to_freeze = self._chosen_weights() if options.may_freeze else frozenset()

    def _chosen_weights(self) -> frozenset[int]:
        """The positions of the weights that are frozen if no gradient is asked of the graph."""
        if self._options.freeze:
            return frozenset(weight.index for weight in self._weights)
        if torch.is_grad_enabled():
            _LOG.debug("%s: no weight is frozen: gradients are enabled", self._name)
            return frozenset()
        try:
            owned = owned_in_evaluation(weight.source for weight in self._weights if weight.source)
        except NotFrozenError as reason:
            _LOG.info("%s: no weight is frozen: %s", self._name, reason)
            return frozenset()
        return frozenset(weight.index for weight in self._weights if weight.source in owned)

    def inference(self, aten: Any, inputs: Sequence[Any]) -> BoxedFunction:
        """A graph that no gradient is asked of."""
        options = self._options
        chosen = self._to_freeze
        known = placed(aten, self._weights)
        static = frozenset(weight.index for weight in known)
        to_freeze = placed(aten, [item for item in self._weights if item.index in chosen])
        original = fx.GraphModule(aten, _copied(aten.graph))

        def build(graph: Any, weights: Sequence[Weight]) -> Built:
            frozen, constants = freeze_weights(graph, weights)
            # a captured graph has copies of inputs that have no fixed place
            writable = static if options.captures else range(len(inputs))
            run = self._compile(graph, inputs, constants, writable)
            if options.captures and computes(graph):
                run = self._captured(graph, run, static)
            return Built(run, frozen, constants_of(graph))

        built = build(aten, self._freezable(to_freeze))
        if not built.frozen:
            return built.run
        if not options.refolds:
            return watched(built)
        return refolding(
            built,
            lambda weights: build(fx.GraphModule(original, _copied(original.graph)), weights),
            most=None if options.freeze else _MOST_CHANGES,
            on_unfrozen=self._say_unfrozen,
        )

    def _say_unfrozen(self, weights: Sequence[Weight]) -> None:
        names = ", ".join(weight.name for weight in weights)
        _LOG.warning("%s: no longer frozen, since they go on changing: %s", self._name, names)

    def _freezable(self, weights: Sequence[Weight]) -> list[Weight]:
        if self._options.freeze_inference_tensors:
            return list(weights)
        counted = [weight for weight in weights if not weight.tensor.is_inference()]
        if len(counted) < len(weights):
            say = (
                _LOG.info
                if self._options.freeze is None
                else functools.partial(warnings.warn, stacklevel=2)
            )
            say(
                f"option 'freeze': {len(weights) - len(counted)} of {len(weights)} weights of "
                f"{self._name} are inference tensors, which count no writes, and stay inputs; load "
                "the model outside inference mode, or say freeze_inference_tensors=True"
            )
        return counted

    def training(self, aten: Any, inputs: Sequence[Any]) -> BoxedFunction:
        """The forward or the backward graph of a function that gradients are asked of."""
        if self._options.capture and self._options.captures:
            raise BringupError(
                f"option 'capture' takes inference graphs only, and {self._name} is compiled for "
                "training (an input or a parameter requires a gradient): call it under "
                "torch.no_grad(), or compile it without capture"
            )
        if self._options.captures:
            _LOG.info("%s is not captured: it is compiled for training", self._name)
        return self._compile(aten, inputs, frozenset())

    def _compile(
        self,
        aten: Any,
        inputs: Sequence[Any],
        constants: frozenset[str],
        writable: Collection[int] = (),
    ) -> BoxedFunction:
        selected: Sequence[PassDescriptor] = self._selected
        if self._options.inner == "eager":
            self._rewrite(aten, selected, constants)
            drop_unused_constants(aten)
            if count := write_inputs_in_place(aten, writable):
                _LOG.info("%s writes %d of its inputs where they lie", self._name, count)
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
        from bringup.compiler.captured import captured, require_no_input_writes

        options = self._options
        try:
            require_no_input_writes(aten, self._name, static)
        except CaptureError as reason:
            if options.capture:
                raise
            _LOG.warning("%s runs as it is: %s", self._name, reason)
            return run
        return captured(
            run,
            self._name,
            static,
            options.max_captures,
            is_required=bool(options.capture),
            static_outputs=options.static_outputs,
        )


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

    Only the entry point is announced: torch loads it, and refuses to register a name twice. From
    then on `torch.compile` checks the options when it is called.
    """
    entry = EntryPoint("bringup", "bringup.compiler:dynamo_backend", "torch_dynamo_backends")
    registry._BACKENDS.setdefault(entry.name, entry)
    when_compile_is_called(dynamo_backend, CompileOptions.parse)
