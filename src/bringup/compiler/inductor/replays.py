"""`mode="reduce-overhead"` on a driver's device: calls of Inductor's code are replays of captured
graphs, one for each shape.
"""

from __future__ import annotations

from typing import Any

from bringup import graphs, settings
from bringup.compiler.captured_calls import captured
from bringup.compiler.inner_compiler import BoxedFunction
from bringup.graphs._compiled_code import is_recorded

_MOST = 8
"""Kinds of calls of one graph that are kept."""

_LOG = settings.logger("compiler")


def replayed(code: Any, run: BoxedFunction) -> BoxedFunction:
    """Return what calls `run`, the kernels of Inductor's `code`, by replays; `run` itself where a
    replay would not do what a call does, and the log says why.

    Inputs are copied into the captured graph, but for weights, and results out of it: they belong
    to the caller.
    """
    name = f"Inductor's graph {code.fx_kwargs.get('graph_id')}"
    if not settings.capture() or code.fx_kwargs.get("is_backward"):
        return run
    if reason := _obstacle(code):
        _LOG.warning("%s is not captured: %s", name, reason)
        return run
    replay = captured(run, name, _static(code), _MOST, is_required=False)

    def call(arguments: list[Any]) -> Any:
        # A capture around this one has its kernels.
        return run(arguments) if graphs.is_current_stream_capturing() else replay(arguments)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _static(code: Any) -> frozenset[int]:
    return frozenset(code.fx_kwargs.get("static_input_idxs") or ())


def _obstacle(code: Any) -> str:
    if not code.fx_kwargs.get("is_inference"):
        return (
            "its backward would get copies of what it keeps. Capture the whole step of training "
            "with graphs.capture(graph, gradients=True), or call it under torch.no_grad()"
        )
    if written := sorted(set(code.mutated_input_idxs) - _static(code)):
        return (
            f"it writes its inputs {written}, and a captured graph has copies of them. Keep what is"
            " written in buffers of the module, or torch._dynamo.mark_static_address(tensor)"
        )
    if not is_recorded(code):
        return "it has kernels for the cpu, which a capture cannot see"
    return ""
