"""ModuleInfo on the device: torch's own module inputs, forward and backward, in training and
evaluation, beside the CPU's.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from bringup import devices
from bringup.conformance._samples import Mover, difference, gradients, outcome, told

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db


@pytest.fixture(scope="module", autouse=True)
def npu() -> devices.DriverInfo:
    return devices.load_driver("sim")


def inputs_of(info: ModuleInfo, training: bool) -> list[ModuleInput]:
    torch.manual_seed(0)
    made = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
    )
    return list(made)


def built(info: ModuleInfo, given: ModuleInput, training: bool) -> nn.Module:
    torch.manual_seed(0)
    constructor = given.constructor_input
    module = info.module_cls(*constructor.args, **constructor.kwargs)
    return module.train(training)


def on_the_device(info: ModuleInfo, given: ModuleInput, module: nn.Module, moved: Any) -> nn.Module:
    """A copy of `module`. A lazy one is made on the device, because in torch 2.13 `Module.to` gives
    a PrivateUse1 device parameters that are new, and lazy no more.
    """
    if not info.is_lazy:
        return copy.deepcopy(module).to("npu")
    with torch.device("npu"):
        there = built(info, given, module.training)
    there(*moved[0], **moved[1])
    there.load_state_dict(module.state_dict())
    return there


def leaves(module: nn.Module, arguments: Any) -> tuple[Any, list[nn.Parameter]]:
    return arguments, list(module.parameters())


def is_repeatable(module: nn.Module, arguments: tuple[Any, Any]) -> bool:
    """Whether the CPU answers alike for several seeds."""
    results = []
    for seed in range(3):
        torch.manual_seed(seed)
        inner = copy.deepcopy(module)
        args, kwargs = Mover("cpu")(arguments)
        results.append(outcome(lambda m=inner, a=args, k=kwargs: m(*a, **k))[0])
    return not any(difference(r, results[0], values=True, device="cpu") for r in results)


def failures(info: ModuleInfo, training: bool, counts: Counter[str]) -> Iterator[str]:
    for given in inputs_of(info, training):
        if given.forward_input is None:
            continue
        arguments = (given.forward_input.args, given.forward_input.kwargs)
        module = built(info, given, training)
        moved = Mover("npu")(arguments)
        values = is_repeatable(module, arguments)
        if info.is_lazy:
            module(*arguments[0], **arguments[1])
        there = on_the_device(info, given, module, moved)
        expected, their_error = outcome(lambda: module(*arguments[0], **arguments[1]))  # noqa: B023
        got, our_error = outcome(lambda: there(*moved[0], **moved[1]))  # noqa: B023
        counts["calls"] += 1
        found = told(got, our_error, expected, their_error, values, "npu")
        if not found and their_error is None:
            counts["backwards"] += 1
            theirs, their_error = outcome(
                lambda: gradients(leaves(module, arguments), expected)  # noqa: B023
            )
            ours, our_error = outcome(lambda: gradients(leaves(there, moved), got))  # noqa: B023
            found = told(ours, our_error, theirs, their_error, values, "npu")
            buffers = dict(module.named_buffers()), dict(there.named_buffers())
            found = found or difference(buffers[1], buffers[0], values=values, device="npu")
        if found:
            yield f"{given.desc or arguments}: {found}"


CASES = [
    pytest.param(info, training, id=f"{info.formatted_name}-{word}")
    for info in module_db
    for training, word in ((True, "training"), (False, "evaluation"))
    if training or info.train_and_eval_differ
]


@pytest.mark.parametrize(("info", "training"), CASES)
def test_module_is_the_cpus(info: ModuleInfo, training: bool, sweep_counts: Counter[str]) -> None:
    assert list(failures(info, training, sweep_counts)) == []
