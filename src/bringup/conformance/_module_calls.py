"""A model's modules, call by call: recorded in a run, each checked alone on equal inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bringup.conformance._deviation import Deviation, deviation, tolerance_of
from bringup.conformance._samples import (
    Mover,
    described,
    gradients,
    outcome,
    results_of_seeds,
    tensors,
)

# A module is many operators: each may have its own error.
_WIDE, _NARROW = 10.0, 2.0


@dataclass
class ModuleCall:
    """The `number`th call of the module at `path`, copies of its arguments, its `inner` calls."""

    path: str
    module: nn.Module
    number: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inner: list[ModuleCall] = field(default_factory=list)


@dataclass(frozen=True)
class CallCheck:
    """How a module's results first differ on equal inputs, or why none were compared."""

    phase: str = "forward"
    result: str = ""
    deviation: Deviation = field(default_factory=Deviation)
    reason: str = ""


def record_calls(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[ModuleCall, list[ModuleCall]]:
    """Run a model without gradients; return its call, and every call, inner ones first."""
    names = {module: name for name, module in model.named_modules()}
    root: list[ModuleCall] = []
    stack: list[ModuleCall] = []
    ended: list[ModuleCall] = []
    counts: dict[str, int] = {}

    def begin(module: nn.Module, given: Any, named: Any) -> None:
        path = names[module]
        move = Mover(_device_of((given, named)))
        args, kwargs = move((given, named))
        call = ModuleCall(path, module, counts.get(path, 0), args, kwargs)
        counts[path] = call.number + 1
        (stack[-1].inner if stack else root).append(call)
        stack.append(call)

    def end(module: nn.Module, given: Any, result: Any) -> None:
        ended.append(stack.pop())

    handles: list[Any] = []
    for module in names:
        handles.append(module.register_forward_pre_hook(begin, with_kwargs=True, prepend=True))
        handles.append(module.register_forward_hook(end, always_call=True))
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return root[0], ended


def check_call(
    call: ModuleCall,
    reference: nn.Module,
    make: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Callable[..., Any]],
    candidate: nn.Module,
    devices: tuple[torch.device, torch.device],
    backward: bool,
) -> CallCheck:
    """Return results and gradients of a call beside the counterpart's, which `make` makes of a
    copy.
    """
    there, here = devices
    theirs = copy.deepcopy(reference)
    sample = _inputs(call, there, backward)
    if not _is_repeatable(theirs, sample, there):
        return CallCheck(reason="it is random")
    expected, failed = outcome(lambda: theirs(*sample[0], **sample[1]))
    if failed is not None:
        return CallCheck(reason=f"the other side: {described(failed)}")
    ours = copy.deepcopy(candidate)
    mine = _inputs(call, here, backward)
    got, failed = outcome(lambda: make(ours, *_inputs(call, here, backward))(*mine[0], **mine[1]))
    if failed is not None:
        return CallCheck(reason=described(failed))
    found = _worst_of(list(tensors(got)), list(tensors(expected)), "result {}")
    if found is not None:
        return CallCheck("forward", *found)
    if not backward:
        return CallCheck()
    wanted, failed = outcome(lambda: gradients((list(theirs.parameters()), sample), expected))
    if failed is not None:
        return CallCheck(reason=f"the other side's backward: {described(failed)}")
    given, failed = outcome(lambda: gradients((list(ours.parameters()), mine), got))
    if failed is not None:
        return CallCheck("backward", reason=described(failed))
    names = [f"the gradient of {name}" for name, p in theirs.named_parameters() if p.requires_grad]
    names += [f"the gradient of input {n}" for n in range(len(wanted) - len(names))]
    found = _worst_of(given, wanted, *names)
    return CallCheck("backward", *found) if found is not None else CallCheck()


def _worst_of(got: list[Any], expected: list[Any], *names: str) -> tuple[str, Deviation] | None:
    if len(got) != len(expected):
        words = f"{len(got)} results, expected {len(expected)}"
        return "the results", Deviation(float("inf"), 0.0, "form", words=words)
    for number, (one, other) in enumerate(zip(got, expected, strict=True)):
        found = deviation(one, other, factor=_factor(other))
        if found.exceeds:
            name = names[number] if len(names) > 1 else names[0].format(number)
            return name, found
    return None


def _factor(value: object) -> float:
    narrow = isinstance(value, Tensor) and tolerance_of(value.dtype) > 1e-4
    return _NARROW if narrow else _WIDE


def _inputs(
    call: ModuleCall, device: torch.device, backward: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copy of the call's arguments on a device; floating ones want gradients if asked."""
    args, kwargs = Mover(device)((call.args, call.kwargs))
    for tensor in tensors((args, kwargs)):
        if backward and (tensor.is_floating_point() or tensor.is_complex()):
            tensor.requires_grad_(True)
    return args, kwargs


def _is_repeatable(module: nn.Module, sample: Any, device: torch.device) -> bool:
    """Return whether a module gives the same for two seeds."""
    with torch.no_grad():
        results = results_of_seeds(module, sample, (1, 2), device)
    one, other = (list(tensors(result)) for result in results)
    return len(one) == len(other) and not any(
        deviation(a, b).exceeds for a, b in zip(one, other, strict=True)
    )


def _device_of(value: object) -> torch.device:
    return next((t.device for t in tensors(value)), torch.device("cpu"))
