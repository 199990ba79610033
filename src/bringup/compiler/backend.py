"""The torch.compile backend "bringup": AOT autograd, passes on ATen, an inner compiler."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx

from bringup import jit, settings
from bringup._native import has_torch_library
from bringup.compiler.dynamo import NotFrozenError, owned_in_evaluation
from bringup.compiler.freeze import Weight, placed, weights_of
from bringup.compiler.graph_modules import bodies, copied, rewrite
from bringup.compiler.in_place_inputs import unwrap_writes
from bringup.compiler.inference_graph import InferenceGraph
from bringup.compiler.inner_compiler import BoxedFunction
from bringup.compiler.native_program import run_eagerly
from bringup.compiler.options import CompileOptions
from bringup.compiler.overlaps import as_traced_or_eagerly, written_arguments
from bringup.compiler.pass_runs import load_and_select, without_library
from bringup.errors import BringupError, MissingCompilerError
from bringup.passes import PassDescriptor, PluginReport

_LOG = settings.logger("compiler")


def rewritten_or_left(module: Any, rewrite: Callable[[bool], None]) -> None:
    """Call `rewrite(True)` for all passes, or `rewrite(False)` where a kernel cannot be had."""
    problem = jit.toolchain("cpu").problem
    if not problem:
        rewrite(True)
        return
    modules = [module, *bodies(module)]
    graphs = [copied(each).graph for each in modules]
    try:
        rewrite(True)
        missing = next(filter(None, map(_missing, modules)), "")
    except BringupError as error:  # of a pass that runs kernels, on weights
        if not isinstance(error.__cause__ or error, MissingCompilerError):
            raise
        missing = str(error.__cause__ or error)
    if missing:
        _warn(problem, missing.partition(":")[0])
        for each, graph in zip(modules, graphs, strict=True):
            each.graph = graph
        rewrite(False)


def _missing(module: Any) -> str:
    """Return why the first kernel of a graph that cannot be had is missing."""
    from bringup.ops.kernel.availability import missing_binary

    for node in module.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda given: given.meta["val"])
            if missing := missing_binary(node.target, args, kwargs):
                return missing
    return ""


@functools.cache  # once a process: a model may have many graphs
def _warn(problem: str, kernel: str) -> None:
    _LOG.warning(
        "the shipped passes are left out where their kernels are not in the cache (%s): %s",
        kernel,
        problem,
    )


_LOG = settings.logger("compiler")


def dynamo_backend(
    module: Any,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, object] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile one Dynamo graph: what `torch.compile(model, backend="bringup", options=...)` calls.
    Returns what runs the graph.

    Args:
        module: the graph that Dynamo captured.
        example_inputs: its inputs, as fake tensors and symbolic sizes.
        options: those of `CompileOptions`, by name.
        mode: the same as the option of that name.

    Raises:
        BringupError: an option or mode is not known.
        PassError: a pass failed.
    """
    # takes half a second to import, which applying passes alone does not need
    from torch._dynamo.backends.common import aot_autograd

    parsed = CompileOptions.parse(options, mode)
    plugins, selected = load_and_select(parsed.passes, parsed.for_passes())
    if parsed.passes is None and not has_torch_library():
        selected = without_library(selected)
    compilation = _Compilation(parsed, plugins, selected, module, example_inputs)
    compiler = aot_autograd(
        fw_compiler=compilation.training, inference_compiler=compilation.inference
    )
    compiled = compiler(module, example_inputs)
    compilation.forget_weights()
    return as_traced_or_eagerly(
        compiled, module.forward, example_inputs, compilation.written, compilation.name
    )


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
        self.name = _name_of(module)
        self.written: set[int] = set()
        self._arguments = len(example_inputs)
        needed = options.may_freeze or options.captures
        self._weights = weights_of(module, example_inputs) if needed else []
        self._unfrozen = False
        self._to_freeze = self._chosen_weights() if options.may_freeze else frozenset()

    def _chosen_weights(self) -> frozenset[int]:
        """Return the positions of the weights frozen if no gradient is asked of the graph."""
        if self._options.freeze:
            return frozenset(weight.index for weight in self._weights)
        if torch.is_grad_enabled():
            _LOG.debug("%s: no weight is frozen: gradients are enabled", self.name)
            self._unfrozen = bool(self._weights)
            return frozenset()
        try:
            owned = owned_in_evaluation(weight.source for weight in self._weights if weight.source)
        except NotFrozenError as reason:
            # who serves expects it, and a module that wraps the model begins in training mode
            level = logging.INFO if self._options.mode == "default" else logging.WARNING
            _LOG.log(level, "%s: no weight is frozen: %s", self.name, reason)
            return frozenset()
        return frozenset(weight.index for weight in self._weights if weight.source in owned)

    def forget_weights(self) -> None:
        """Drop the parameters after the compile: torch.utils.swap_tensors needs sole owners."""
        self._weights = []

    def inference(self, aten: Any, inputs: Sequence[Any]) -> BoxedFunction:
        self.written |= written_arguments(aten, self._arguments)
        if self._unfrozen and self._options.mode != "default":
            warn_of_gradients(self._options.mode, "frozen")
        graph = InferenceGraph(
            aten,
            inputs,
            placed(aten, self._weights),
            self._options,
            self.name,
            functools.partial(self._rewrite, inputs),
        )
        chosen = [weight for weight in self._weights if weight.index in self._to_freeze]
        return graph.compile(self._freezable(placed(aten, chosen)))

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
                f"{self.name} are inference tensors, which count no writes, and stay inputs; load "
                "the model outside inference mode, or say freeze_inference_tensors=True"
            )
        return counted

    def training(self, aten: Any, inputs: Sequence[Any]) -> BoxedFunction:
        """Return the forward or the backward graph of a function that gradients are asked of."""
        self.written |= written_arguments(aten, self._arguments)
        if self._options.capture and self._options.captures:
            raise BringupError(
                f"option 'capture' takes inference graphs only, and {self.name} is compiled for "
                "training (an input or a parameter requires a gradient): call it under "
                "torch.no_grad(), or compile it without capture"
            )
        if self._options.captures:
            warn_of_gradients(self._options.mode, "frozen or captured")
        run = self._rewrite(inputs, aten, frozenset())
        if run is None:
            unwrap_writes(aten)
            run = run_eagerly(aten, inputs)
        return run

    def _rewrite(
        self, inputs: Sequence[Any], aten: Any, constants: frozenset[str]
    ) -> BoxedFunction | None:
        """Run the passes. Returns what Inductor made of the graph, if it is asked."""
        selected: Sequence[PassDescriptor] = self._selected
        options, plugins = self._values, self._plugins
        if self._options.inner == "eager":

            def run(shipped: bool) -> None:
                chosen = selected if shipped else without_library(selected)
                rewrite(aten, chosen, plugins, options=options, constants=constants)

            if self._options.passes is None:
                rewritten_or_left(aten, run)
            else:
                run(True)
            return None
        from bringup.compiler.inductor.hooks import compile_with_inductor, passes_before_inductor

        first = passes_before_inductor(selected)
        rewrite(aten, first, plugins, options=options, constants=constants)
        generated = compile_with_inductor(aten, inputs, selected, plugins, options)
        return cast(BoxedFunction, generated)


@functools.cache  # once a process: a model may have many graphs
def warn_of_gradients(mode: str, lost: str) -> None:
    """Warn that a mode for serving gives nothing of what `lost` says."""
    _LOG.warning(
        "mode=%r: gradients are on: nothing is %s; call the model under torch.inference_mode() or "
        "torch.no_grad()",
        mode,
        lost,
    )


def _name_of(module: Any) -> str:
    """Return the outermost module or function of a Dynamo graph, as its nodes remember it."""
    for node in module.graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if stack:
            _, kind = next(iter(stack.values()))
            return f"the graph of {getattr(kind, '__name__', str(kind).rpartition('.')[2])}"
    return "this graph"
