"""`mode="reduce-overhead"` on a driver's device: calls are replays of a graph for each shape."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import torch
from torch._inductor import config

from bringup import settings
from bringup.compiler.captured_calls import captured
from bringup.compiler.inner_compiler import BoxedFunction
from bringup.graphs._compiled_code import is_recorded

_MOST = 8
"""Kinds of calls of one graph that are kept."""

_KEPT: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()
"""What keeps its address in some graph, by its storage."""

_LOG = settings.logger("compiler")


def replayed(code: Any, run: BoxedFunction) -> BoxedFunction:
    """Return what calls `run`, the kernels of Inductor's `code`, by replays, or `run` with a reason
    logged. Inputs but weights are copied in, and results out: they belong to the caller.
    """
    name = f"Inductor's graph {code.fx_kwargs.get('graph_id')}"
    if not settings.capture():
        return run
    static = _static(code)
    if reason := _obstacle(code, static or frozenset()):
        _LOG.warning("%s is not captured: %s", name, reason)
        return run
    replay: BoxedFunction | None = None

    def call(arguments: list[Any]) -> Any:
        nonlocal replay
        if replay is None:
            kept = _kept(arguments) if static is None else static
            _KEPT.update((_memory(arguments[i]), arguments[i]) for i in kept)
            split_at = config.custom_should_partition_ops
            replay = captured(run, name, kept, _MOST, is_required=False, split_at=split_at)
        return replay(arguments)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _static(code: Any) -> frozenset[int] | None:
    """Return which inputs keep their address; None for a backward graph, of which Inductor says
    that what its forward kept does: here those are results of a replay.
    """
    if code.fx_kwargs.get("is_backward"):
        return None
    return frozenset(code.fx_kwargs.get("static_input_idxs") or ())


def _kept(arguments: list[Any]) -> frozenset[int]:
    """Return which arguments of a backward graph are weights, or views of them."""
    weights = {i: _KEPT.get(_memory(item)) for i, item in enumerate(arguments)}
    return frozenset(
        i
        for i, weight in weights.items()
        if weight is not None and _memory(weight) == _memory(arguments[i])
    )


def _memory(item: Any) -> int:
    """Return which storage an argument has; 0 for what is no tensor."""
    return int(item.untyped_storage()._cdata) if isinstance(item, torch.Tensor) else 0


def _obstacle(code: Any, static: frozenset[int]) -> str:
    if written := sorted(set(code.mutated_input_idxs) - static):
        return (
            f"it writes its inputs {written}, and a captured graph has copies of them. Keep what is"
            " written in buffers of the module, or torch._dynamo.mark_static_address(tensor)"
        )
    if not is_recorded(code):
        return "it has kernels for the cpu, which a capture cannot see"
    if "torch.ops.higher_order." in code.source_code:
        return "it has operators that run as Python, and may do another thing at every call"
    return ""
