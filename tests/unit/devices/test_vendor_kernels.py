"""Somebody else's kernels for the device: who runs, and what a captured graph makes of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

SETUP = """
import torch
from bringup import devices, errors, graphs
library = torch.library.Library("aten", "IMPL")
calls = []
"""
LOAD = """
devices.load_driver("sim")
x = torch.arange(-2., 3., device="npu")
"""
CONVOLUTION = """
def convolution(input, weight, bias, stride, padding, dilation, transposed, out_padding, groups):
    calls.append("mine")
    more = (stride, padding, dilation, transposed, out_padding, groups)
    return torch.convolution(input.cpu(), weight.cpu(), bias, *more).to(input.device)

library.impl("convolution_overrideable", convolution, "PrivateUse1")
"""
CALL = """
image, weight = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
got = torch.nn.functional.conv2d(image.to("npu"), weight.to("npu"))
torch.testing.assert_close(got.cpu(), torch.nn.functional.conv2d(image, weight))
"""
RELU = """
def relu(x):
    return (x.cpu().clamp(min=0) * 1).to(x.device)

library.impl("relu", relu, "PrivateUse1")
library.impl("cat", lambda tensors, dim=0: torch.cat([t.cpu() for t in tensors], dim).to("npu"),
             "PrivateUse1")
"""


@pytest.mark.parametrize("order", [CONVOLUTION + LOAD, LOAD + CONVOLUTION], ids=["before", "after"])
def test_a_vendors_convolution_runs_whenever_it_was_registered(
    order: str, fresh_python: Callable[..., str]
) -> None:
    told = fresh_python(
        SETUP
        + order
        + CALL
        + """
fell_back = [row.operator for row in devices.fallback_report().rows]
shown = devices.explain("aten::convolution_overrideable")["PrivateUse1"].source
print(calls, "aten::convolution_overrideable" in fell_back, "string" in shown)
"""
    )
    assert told == "['mine'] False True"


def test_the_kits_kernels_come_back_when_a_library_from_before_the_driver_goes(
    fresh_python: Callable[..., str],
) -> None:
    told = fresh_python(
        SETUP
        + "library.impl('zero_', lambda x: x.fill_(7.), 'PrivateUse1')\n"
        + CONVOLUTION
        + LOAD
        + "print(x.clone().zero_().tolist())\n"
        + "library._destroy()\n"
        + "print(x.clone().zero_().tolist())\n"
        + "devices.load_driver('sim')\n"
        + CALL
        + "print(calls)"
    )
    assert told.splitlines() == [str([7.0] * 5), str([0.0] * 5), "[]"]


def test_a_captured_graph_refuses_a_kernel_that_it_cannot_start(
    fresh_python: Callable[..., str],
) -> None:
    told = fresh_python(
        SETUP
        + RELU
        + LOAD
        + """
for call in (lambda: x.relu() + 1, lambda: torch.stack([x, x]), lambda: x.neg().abs()):
    graph = graphs.CapturedGraph()
    try:
        with graphs.capture(graph):
            y = call()
    except errors.CaptureError as error:
        print(str(error).replace("\\n", " "))
    else:
        x.add_(1)
        graph.replay()
        print(y.tolist() == x.abs().tolist())
"""
    )
    relu, stack, others = told.splitlines()
    assert "aten::relu runs a kernel on the device that starts its own work" in relu
    assert "devices.kernel or ops.kernel_op" in relu
    assert "aten::stack" in stack
    assert "aten::cat, registered at" in stack
    assert others == "True"
