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


# A vendor's operator: it starts its own kernels, twice, in torch's current stream, through the
# runtime below torch.
VENDOR = """
import ctypes as c
from bringup import _native, jit
from bringup.devices import _driver_abi as abi

KERNEL = '''#include <bringup/device.h>
BRINGUP_EXPORT void twice(const bringup_position* at, float* out, const float* x, int64_t n) {
  const int64_t i = (int64_t)at->block_idx.x * at->block_dim.x + at->thread_idx.x;
  if (i < n) out[i] = 2 * x[i];
}
'''
built = jit.compile(jit.Source(name="vendor.cpp", text=KERNEL, entry="twice"), target="cpu").path
runtime = abi.open_table(_native.sim_driver_path())
module, twice = c.c_void_p(), c.c_void_p()
assert runtime.function("module_load")(0, str(built).encode(), c.byref(module)) == 0
assert runtime.function("get_function")(module, b"twice", c.byref(twice)) == 0

def start(out, x, stream=None):
    values = (abi.Value * 3)()
    values[0].kind, values[0].size, values[0].value = 1, 8, out.data_ptr()
    values[1].kind, values[1].size, values[1].value = 1, 8, x.data_ptr()
    values[2].kind, values[2].size, values[2].value = 2, 8, x.numel()
    launch = abi.LaunchValues(
        struct_size=c.sizeof(abi.LaunchValues), nvalues=3, values=values, fn=twice,
        grid=abi.Dim3(x.numel(), 1, 1), block=abi.Dim3(1, 1, 1), name=b"vendor::twice",
    )
    stream = stream or torch.npu.current_stream().native_handle
    assert runtime.function("launch_values")(0, stream, c.byref(launch)) == 0

def relu(x):
    calls.append("mine")
    half, out = torch.empty_like(x), torch.empty_like(x)
    start(half, x)
    start(out, half)
    return out

library.impl("relu", relu, "PrivateUse1")
"""


def test_a_vendors_kernels_run_in_a_captured_graph(fresh_python: Callable[..., str]) -> None:
    told = fresh_python(
        SETUP
        + LOAD
        + VENDOR
        + """
graph = graphs.CapturedGraph()
with graphs.capture(graph):
    y = (x + 1).relu() - 3
print(calls, [(node.op, node.method) for node in graph.nodes if "relu" in node.op])
for step in (0.0, 5.0):
    x.add_(step)
    graph.replay()
    print(y.tolist() == (4 * (x + 1) - 3).tolist())
print(len(calls))
"""
    )
    first, *equal, count = told.splitlines()
    assert first == "['mine', 'mine'] [('aten::relu', 'stream capture')]"
    assert equal == ["True", "True"]
    assert count == "2"  # a replay runs no Python


def test_what_a_vendors_kernel_keeps_of_a_capture_outlives_the_graph(
    fresh_python: Callable[..., str],
) -> None:
    told = fresh_python(
        SETUP
        + LOAD
        + VENDOR
        + """
kept = []

def keeping(x):
    calls.append("mine")
    half, out = torch.empty_like(x), torch.empty_like(x)
    start(half, x)
    start(out, half)
    if len(calls) > 1:  # what the run leaves behind is a result
        kept.extend((x, half, out))
    return out

library.impl("abs", keeping, "PrivateUse1")
graph = graphs.CapturedGraph()
with graphs.capture(graph):
    y = (x + 1).abs()
graph.replay()
print(y.tolist() == (4 * (x + 1)).tolist())
graph.reset()
del graph, y
others = [torch.zeros_like(x) for _ in range(50)]
for one in kept:
    one.fill_(9.0)
print(any(other.any() for other in others), [one.unique().tolist() for one in kept])
"""
    )
    assert told.splitlines() == ["True", "False [[9.0], [9.0], [9.0]]"]


def test_a_vendors_kernel_that_asks_for_other_memory_is_refused(
    fresh_python: Callable[..., str],
) -> None:
    told = fresh_python(
        SETUP
        + LOAD
        + VENDOR
        + """
def absolute(x):
    scratch = torch.empty(64 * (len(calls) + 1), device="npu")
    return relu(x)

library.impl("abs", absolute, "PrivateUse1")
graph = graphs.CapturedGraph()
try:
    with graphs.capture(graph):
        y = x.abs()
except errors.CaptureError as error:
    print(str(error).replace("\\n", " "))
print((x * 2).relu().tolist() == (x * 8).tolist())
"""
    )
    refused, runs_on = told.splitlines()
    assert "its stream could not be captured: it asked for other memory" in refused
    assert runs_on == "True"


BESIDE = """
beside = torch.npu.Stream().native_handle

def start_beside(out, x):
    start(out, x, beside)
    assert runtime.function("stream_synchronize")(0, beside) == 0

def scratch(x):
    half, out = torch.empty_like(x), torch.empty_like(x)
    start_beside(half, x)
    start(out, half)
    return out

def in_turn(x):
    out = torch.empty_like(x)
    start_beside(out, x)
    start(out, out)
    return out

def written(x):
    start_beside(x, x)
    start(x, x)
    return x

library.impl("abs", scratch, "PrivateUse1")
library.impl("tanh", in_turn, "PrivateUse1")
library.impl("neg_", written, "PrivateUse1")
for name in ("abs", "tanh", "neg_"):
    try:
        with graphs.capture(graphs.CapturedGraph()):
            y = getattr(x, name)()
    except errors.CaptureError as error:
        print(str(error).replace("\\n", " "))
    print(x.tolist() == [-2, -1, 0, 1, 2])
"""


def test_work_in_another_stream_than_the_captured_one_is_refused(
    fresh_python: Callable[..., str],
) -> None:
    """A replay would not repeat it, and find what the capture has left there."""
    told = fresh_python(SETUP + LOAD + VENDOR + BESIDE).splitlines()
    assert len(told) == 6
    for name, refused, unchanged in zip(
        ("abs", "tanh", "neg_"), told[::2], told[1::2], strict=True
    ):
        assert f"aten::{name} runs a kernel on the device that starts its own work" in refused
        assert "it must give no other stream work" in refused
        assert unchanged == "True"


OWN = """
tags = torch.Tag.pt2_compliant_tag
for name, said in {"said": (tags,), "unsaid": (), "drawing": (tags,),
                   "seeded": (tags, torch.Tag.nondeterministic_seeded)}.items():
    torch.library.define(f"vendor::{name}", "(Tensor x) -> Tensor", tags=said)
    if name != "drawing":
        torch.library.impl(f"vendor::{name}", "PrivateUse1")(relu)

@torch.library.impl("vendor::drawing", "PrivateUse1")
def drawing(x):
    torch.rand(1)
    return relu(x)

for name in ("said", "unsaid", "drawing", "seeded"):
    graph = graphs.CapturedGraph()
    try:
        with graphs.capture(graph):
            y = getattr(torch.ops.vendor, name)(x)
    except errors.CaptureError as error:
        print("starts its own work" in str(error))
    else:
        x.add_(1)
        graph.replay()
        print([node.method for node in graph.nodes], y.tolist() == (4 * x).tolist())
"""


def test_an_operator_of_a_vendors_namespace_is_captured_where_its_tags_say_that_it_may(
    fresh_python: Callable[..., str],
) -> None:
    """One that may draw random numbers is not: a node would draw the same ones each time."""
    told = fresh_python(SETUP + LOAD + VENDOR + OWN).splitlines()
    assert told == ["['stream capture'] True", "True", "True", "True"]
