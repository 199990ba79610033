"""On a device with kernels of its own an operator that torch makes of others is captured as these,
and copies and fills are kernels: a graph then needs no memory that the host sees.
"""

from __future__ import annotations

from tests.forked_python import output_of

BEGIN = """
import torch
from torch.nn import functional as F
from bringup import devices, graphs
from bringup.errors import CaptureError
devices.load_driver("sim")

def captured(call):
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        result = call()
    return graph, result
"""

UNSEEN = """
devices.kernel("aten::mul.Tensor", expression="self * other")
chosen = "self if condition else other"
devices.kernel("aten::where.self", expression=chosen, supports=["floating", "bool"])
x = torch.arange(6.0, device="npu").view(2, 3)
number = torch.tensor(2.0, device="npu")

def call():
    filled = torch.ones(3, 2, device="npu") * x.t().contiguous()   # of empty, fill_ and clone
    rows = torch.zeros(3, 2, dtype=torch.bool, device="npu")
    rows[:2].fill_(True), rows[1:2].zero_()
    return torch.where(rows, filled, torch.empty_like(filled).fill_(number))

try:
    captured(call)
except CaptureError as error:
    print("fill_" in str(error), "not visible to the host" in str(error))
devices.kernel("aten::copy.out", expression="src", supports=["floating", "bool"])
graph, result = captured(call)
print({node.kind for node in graph.nodes}, [node.op for node in graph.nodes].count("aten::clone"))
for step in (0.0, 1.0):
    x.copy_(x.cpu() + step), number.copy_(number.cpu() + step)
    graph.replay()
    wanted = torch.full((3, 2), number.item())
    wanted[0] = x.cpu().t()[0]
    print(torch.equal(result.cpu(), wanted))
"""


def test_copies_fills_and_parts_need_no_memory_that_the_host_sees() -> None:
    refused, nodes, *equal = output_of(BEGIN + UNSEEN, BRINGUP_SIM_ISOLATED="1").splitlines()
    assert refused == "True True"
    assert nodes == "{'kernel'} 1"
    assert equal == ["True", "True"]


ROUNDED = """
devices.pointwise_kernels()
x, sign = torch.rand(5, 5, device="npu"), torch.ones(5, 5, device="npu")
calls = {
    "soft_margin_loss": lambda: F.soft_margin_loss(x, sign),
    "_safe_softmax": lambda: torch.ops.aten._safe_softmax(x, -1),
    "mvlgamma": lambda: torch.mvlgamma(x + 3, 2),
    "bilinear": lambda: F.bilinear(x, x, sign.expand(3, 5, 5)),
}
for name, call in calls.items():
    graph, result = captured(call)
    x.add_(0.125)
    graph.replay()
    print(name, torch.equal(result, call()))
"""


def test_a_replay_rounds_as_the_devices_kernels_do() -> None:
    """As a whole a graph would run the CPU's kernels."""
    said = output_of(BEGIN + ROUNDED).splitlines()
    assert [line.split()[1] for line in said] == ["True"] * 4


UNASKED = """
devices.kernel("aten::mul.Tensor", expression="self * other")
table = torch.ones(4, 2, device="npu", requires_grad=True)
try:
    with graphs.capture(graphs.CapturedGraph(), gradients=False):
        F.embedding(torch.tensor([1, 2], device="npu"), table)
except CaptureError as error:
    print(error)
"""


def test_a_gradient_that_nobody_asked_for_is_refused_in_parts_too() -> None:
    assert output_of(BEGIN + UNASKED).startswith("aten::embedding would record a gradient")
