"""`torch.cond` and `torch.while_loop` in a capture: both branches are recorded, a loop's condition
and body once, and a replay goes where its predicates say.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.while_loop import while_loop_op
from torch._subclasses import FakeTensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from bringup._after_import import after_import
from bringup.errors import CaptureError
from bringup.graphs._capture import (
    current_recorder,
    current_scopes,
    rehearses,
    scope,
    unrecorded,
)
from bringup.graphs._describe import value_words

_RECORDER_KEY = torch._C._parse_dispatch_key("DeferredInit")  # recorder_key.h


def _captured(operator: Any, kernel: Callable[..., Any]) -> None:
    """Let `kernel(recorder, *args)` run the operator where a capture records it."""

    def run(*args: Any, **kwargs: Any) -> Any:
        recorder = current_recorder()
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        elsewhere = any(
            isinstance(one, FakeTensor) or torch._is_functional_tensor(one) for one in tensors
        )
        if recorder is None or recorder.paused or elsewhere:
            with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_RECORDER_KEY)):
                return operator(*args, **kwargs)
        return kernel(recorder, *args, **kwargs)

    operator.py_impl(_RECORDER_KEY)(run)


def _cond(
    recorder: Any,
    pred: Any,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: Sequence[torch.Tensor],
) -> Any:
    true_fn, false_fn = _plain(true_fn), _plain(false_fn)
    if not isinstance(pred, torch.Tensor) or rehearses():
        return (true_fn if _is_true(recorder, pred) else false_fn)(*operands)
    recorder.begin_control("torch.cond")
    pred = _as_bool(pred)
    taken = _is_true(recorder, pred)
    to_false = recorder.add_control(pred)
    with _branch(recorder, "cond.true", taken is True):
        values, spec = tree_flatten(true_fn(*operands))
        _check_tensors("torch.cond", values)
        results = [value.clone() for value in values]
        to_end = recorder.add_control(None)
    recorder.go_to(to_false, recorder.node_count)
    with _branch(recorder, "cond.false", taken is False):
        values, other_spec = tree_flatten(false_fn(*operands))
        if spec != other_spec:
            raise CaptureError("torch.cond: its branches give results of different nests")
        _write("torch.cond: its branches give", results, values)
    recorder.go_to(to_end, recorder.node_count)
    recorder.end_control(exclusive=True)
    return tree_unflatten(results, spec)


def _while_loop(
    recorder: Any,
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any],
    **_options: Any,
) -> tuple[Any, ...]:
    cond_fn, body_fn = _plain(cond_fn), _plain(body_fn)
    numbers = [not isinstance(value, torch.Tensor) for value in carried_inputs]
    carried = [_as_tensor(value).clone() for value in carried_inputs]

    def goes_on() -> Any:
        value = cond_fn(*carried, *additional_inputs)
        if not isinstance(value, torch.Tensor):
            raise CaptureError(
                f"torch.while_loop: its condition is {value!r}, which a replay would not compute"
                " again: give a tensor"
            )
        return _as_bool(value)

    def body() -> Sequence[torch.Tensor]:
        given = [  # a body may add to a number in place
            one.clone() if number else one for one, number in zip(carried, numbers, strict=True)
        ]
        return [_as_tensor(value) for value in body_fn(*given, *additional_inputs)]

    def trip() -> None:
        _write("torch.while_loop: it carries, and its body gives,", carried, body())

    if rehearses():
        while _is_true(recorder, goes_on()):
            trip()
        return tuple(carried)
    recorder.begin_control("torch.while_loop")
    begin = recorder.node_count
    with _branch(recorder, "while_loop.condition", True):
        pred = goes_on()
        if not pred.is_cpu and recorder.predates(pred):
            pred = pred.clone()  # a failure on the host makes it false
        taken = _is_true(recorder, pred)
        to_end = recorder.add_control(pred)
    with _branch(recorder, "while_loop.body", taken is True):
        values = body()
        if any((recorder.writer(one) or 0) >= begin for one in carried):
            raise CaptureError(
                "torch.while_loop: its condition or body writes what it carries in place: clone()"
                " it before"
            )
        _write("torch.while_loop: it carries, and its body gives,", carried, values)
        recorder.go_to(recorder.add_control(None), begin)
    recorder.go_to(to_end, recorder.node_count)
    recorder.end_control(exclusive=False)
    if taken:
        with unrecorded():
            while bool(goes_on()):
                trip()
        recorder.repeated()
    return tuple(carried)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a function that Dynamo made does, which is then no call of a module."""
    return function.forward if isinstance(function, torch.fx.GraphModule) else function


@contextmanager
def _branch(recorder: Any, name: str, computes: bool) -> Iterator[None]:
    recorder.begin_branch(computes)
    current_scopes().enter_branch()
    try:
        with scope(name):
            yield
    except CaptureError as error:
        raise CaptureError(f"in `{name}`: {error}") from error
    recorder.end_branch()


def _is_true(recorder: Any, pred: Any) -> bool | None:
    """Return what the run finds; None where it does not come."""
    if not recorder.computes:
        return None
    with unrecorded():
        return bool(pred)


def _as_bool(pred: torch.Tensor) -> torch.Tensor:
    if pred.numel() != 1:
        raise CaptureError(f"a predicate has one element, got {value_words(pred)}")
    return pred if pred.dtype == torch.bool else pred != 0


def _as_tensor(value: Any) -> Any:
    """Return an integer that a loop carries as a tensor, of which each trip has another one."""
    return torch.tensor(value) if isinstance(value, int) else value


def _check_tensors(what: str, values: Sequence[Any]) -> None:
    for value in values:
        if not isinstance(value, torch.Tensor):
            raise CaptureError(
                f"{what}: {value!r} is no tensor, and a replay would not compute it again"
            )


def _write(what: str, targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copy values to where they are expected, which some of them may be views of."""
    _check_tensors(what.partition(":")[0], values)
    places = {target.untyped_storage()._cdata for target in targets}
    forms = [[(one.shape, one.dtype, one.device) for one in side] for side in (targets, values)]
    if forms[0] != forms[1]:
        told = (", ".join(map(value_words, side)) for side in (targets, values))
        raise CaptureError(f"{what} {' and '.join(told)}: a captured graph has fixed shapes")
    moved = [
        value.clone() if value.untyped_storage()._cdata in places and value is not target else value
        for target, value in zip(targets, values, strict=True)
    ]
    for target, value in zip(targets, moved, strict=True):
        if value is not target:
            target.copy_(value)


def _unrolled(name: str, operator: str) -> None:
    """Record every trip of what makes as many as a shape says."""
    module = f"torch._higher_order_ops.{name}"

    def register() -> None:
        found = getattr(sys.modules[module], operator)
        eager = found.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd]
        _captured(found, lambda _recorder, *args, **kwargs: eager(*args, **kwargs))

    after_import(module, register)


def record_control_flow() -> None:
    """Let captures record it; nothing changes elsewhere."""
    _captured(cond_op, _cond)
    _captured(while_loop_op, _while_loop)
    _unrolled("scan", "scan_op")
    _unrolled("map", "map_impl")
