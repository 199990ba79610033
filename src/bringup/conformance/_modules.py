"""ModuleInfo on a device: torch's own module inputs, forward and backward, beside the CPU's."""

from __future__ import annotations

import copy
import functools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bringup.conformance._deviation import leaf_deviations, limits, worst
from bringup.conformance._float64_reference import second_opinion
from bringup.conformance._opinfo import Watch
from bringup.conformance._samples import (
    Mover,
    describe_difference,
    difference,
    gradients,
    outcome,
    results_of_seeds,
    tensors,
)

if TYPE_CHECKING:
    from torch.testing._internal.common_modules import ModuleInfo, ModuleInput

_OPERATORS = 10.0  # a module is many, each with an error of its own


def module_cases() -> Iterator[tuple[str, ModuleInfo, bool]]:
    """Yield every module by name, in training and, where that differs, in evaluation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_modules import module_db
    for info in module_db:
        for training, word in ((True, "training"), (False, "evaluation")):
            if training or info.train_and_eval_differ:
                yield f"{info.formatted_name}-{word}", info, training


def _inputs_of(info: ModuleInfo, training: bool) -> list[ModuleInput]:
    torch.manual_seed(0)
    made = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
    )
    return list(made)


def _built(info: ModuleInfo, given: ModuleInput, training: bool) -> nn.Module:
    torch.manual_seed(0)
    constructor = given.constructor_input
    module = info.module_cls(*constructor.args, **constructor.kwargs)
    return module.train(training)


def _on_the_device(
    info: ModuleInfo, given: ModuleInput, module: nn.Module, moved: Any, device: str
) -> nn.Module:
    """Return a copy of `module`; a lazy one is made on the device, as `Module.to` would lose it."""
    if not info.is_lazy:
        return copy.deepcopy(module).to(device)
    with torch.device(device):
        there = _built(info, given, module.training)
    there(*moved[0], **moved[1])
    there.load_state_dict(module.state_dict())
    return there


def _leaves(module: nn.Module, arguments: Any) -> tuple[Any, list[nn.Parameter]]:
    return arguments, list(module.parameters())


def _in_float64(
    info: ModuleInfo, given: ModuleInput, training: bool, arguments: Any
) -> tuple[Any, Any]:
    """Return the leaves of a call of the module in float64, and its outputs."""
    module = _built(info, given, training)
    if info.is_lazy:
        module(*given.forward_input.args, **given.forward_input.kwargs)
    module = module.double()
    asked = given.forward_input.args, given.forward_input.kwargs
    for wide, kept in zip(tensors(arguments), tensors(asked), strict=True):
        wide.requires_grad_(kept.requires_grad)
    args, kwargs = arguments
    return _leaves(module, arguments), module(*args, **kwargs)


def _is_repeatable(module: nn.Module, arguments: tuple[Any, Any]) -> bool:
    """Return whether the CPU answers alike for several seeds."""
    first, *others = results_of_seeds(module, arguments, range(3), "cpu")
    return not any(difference(other, first, values=True, device="cpu") for other in others)


def module_failures(
    info: ModuleInfo, training: bool, counts: Counter[str], device: str, watch: Watch | None = None
) -> Iterator[str]:
    """Yield how a module's samples differ from the CPU's; `counts` gets "calls" and "backwards"."""
    watch = watch or Watch()
    kind = torch.device(device).type
    for given in _inputs_of(info, training):
        if given.forward_input is None:
            continue
        arguments = (given.forward_input.args, given.forward_input.kwargs)
        module = _built(info, given, training)
        moved, kept = Mover(device)(arguments), Mover("cpu")(arguments)
        values = _is_repeatable(module, arguments)
        if info.is_lazy:
            module(*arguments[0], **arguments[1])
        there = _on_the_device(info, given, module, moved, device)
        expected, their_error = outcome(lambda: module(*arguments[0], **arguments[1]))  # noqa: B023
        with watch.calls():
            got, our_error = outcome(lambda: there(*moved[0], **moved[1]))  # noqa: B023
        counts["calls"] += 1
        wide = functools.partial(_in_float64, info, given, training)
        again = (lambda *a: list(tensors(wide(a)[1]))), kept  # noqa: B023
        found = _told(got, our_error, expected, their_error, values, kind, again)
        if not found and their_error is None:
            counts["backwards"] += 1
            theirs, their_error = outcome(
                lambda: gradients(_leaves(module, arguments), expected)  # noqa: B023
            )
            with watch.calls():
                ours, our_error = outcome(lambda: gradients(_leaves(there, moved), got))  # noqa: B023
            again = (lambda *a: list(tensors(gradients(*wide(a))))), kept  # noqa: B023
            found = _told(ours, our_error, theirs, their_error, values, kind, again)
            buffers = dict(module.named_buffers()), dict(there.named_buffers())
            found = found or difference(buffers[1], buffers[0], values=values, device=kind)
        if not found and values and their_error is None:
            watch.results(got, expected)
        if found:
            yield f"{given.desc or forms(arguments)}: {found}"


def _told(
    got: object,
    our_error: Exception | None,
    expected: object,
    their_error: Exception | None,
    values: bool,
    device: str,
    again: tuple[Callable[..., list[Tensor]], Any],
) -> str:
    """Return how an outcome differs from the CPU's, in words; `again` gives results in float64."""
    words = describe_difference(got, our_error, expected, their_error, False, device)
    if words or not values or their_error is not None:
        return words
    pair = list(tensors(got)), list(tensors(expected))
    found = worst(
        [
            one
            for number, one in enumerate(leaf_deviations(*pair, factor=_OPERATORS))
            if one.kind != "value"
            or not second_opinion(
                *again,
                number,
                pair[0][number],
                pair[1][number],
                functools.partial(limits, found=one, pointwise=False),
            )
        ]
    )
    if not found.exceeds:
        return ""
    return (
        f"{found.got} at {list(found.index)} of {found.dtype}{list(found.shape)}, expected "
        f"{found.expected}; error {found.error:.2g} of the largest value, allowed "
        f"{found.allowed:.2g} {found.words}".rstrip()
    )


def forms(arguments: Any) -> str:
    """Return what a module was called with: dtypes and shapes of its tensors."""
    forms = (f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors(arguments))
    return f"called with {', '.join(forms)}"
