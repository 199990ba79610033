"""Copies within a device in a captured graph: the driver makes them, in the order of the nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.forked_python import output_of
from torch import Tensor

from bringup import devices, graphs


@pytest.fixture(scope="module", autouse=True)
def npu() -> devices.DriverInfo:
    return devices.load_driver("sim")


def captured(step: Callable[[], object]) -> graphs.CapturedGraph:
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        step()
    return graph


def methods(graph: graphs.CapturedGraph) -> list[str]:
    return [node.method for node in graph.nodes]


def test_a_copy_is_a_node_of_the_drivers_graph() -> None:
    source, target = torch.arange(6.0, device="npu"), torch.zeros(6, device="npu")
    with devices.sim.faults() as seen:
        graph = captured(lambda: target.copy_(source))
    assert seen.functions["graph_add_copy"].calls == 1
    assert methods(graph) == ["device copy"]
    assert target.tolist() == [0] * 6  # nothing has run
    for factor in (1, 2):
        source.mul_(factor)
        graph.replay()
        assert torch.equal(target, source)


def test_copies_keep_their_place_among_other_operators() -> None:
    x, y = torch.ones(8, device="npu"), torch.empty(8, device="npu")

    def step() -> None:
        x.add_(1)
        y.copy_(x)
        x.mul_(10)
        x[4:].copy_(y[:4])

    graph = captured(step)
    assert methods(graph).count("device copy") == 2
    expected, kept = x.cpu(), torch.empty(8)
    for _ in range(3):
        expected.add_(1)
        kept.copy_(expected)
        expected.mul_(10)
        expected[4:].copy_(kept[:4])
        graph.replay()
        assert torch.equal(x.cpu(), expected)
        assert torch.equal(y.cpu(), kept)


def test_a_clone_is_one_too() -> None:
    x = torch.arange(12, device="npu")
    held: list[Tensor] = []
    graph = captured(lambda: held.append(x.view(3, 4).clone() + 1))
    assert methods(graph)[0] == "device copy"
    x.neg_()
    graph.replay()
    assert torch.equal(held[0].cpu(), 1 - torch.arange(12).view(3, 4))


@pytest.mark.parametrize(
    "step",
    [
        lambda x, y: y.copy_(x.double()),
        lambda x, y: y.copy_(x.t()),
        lambda x, y: y[:, :2].copy_(x[:, :2]),
        lambda x, y: y.copy_(x[0]),
    ],
    ids=["dtype", "transposed", "rows", "expanded"],
)
def test_what_is_no_linear_copy_is_no_copy_of_the_driver(
    step: Callable[[Tensor, Tensor], object],
) -> None:
    x = torch.arange(16.0, device="npu").view(4, 4)
    y = torch.zeros(4, 4, device="npu")
    graph = captured(lambda: step(x, y))
    assert "device copy" not in methods(graph)
    expected = torch.zeros(4, 4)
    step(x.cpu(), expected)
    graph.replay()
    assert torch.equal(y.cpu(), expected)


def test_a_copy_that_the_driver_refuses_fails_the_capture() -> None:
    source, target = torch.ones(4, device="npu"), torch.zeros(4, device="npu")
    with (
        devices.sim.faults(fail="graph_add_copy"),
        pytest.raises(RuntimeError, match=r"aten::copy_ failed on device 'npu': injected"),
    ):
        captured(lambda: target.copy_(source))
    target.copy_(source)
    assert target.tolist() == [1.0] * 4


def test_each_node_can_be_timed(tmp_path: Path) -> None:
    x, y = torch.ones(4, device="npu"), torch.zeros(4, device="npu")
    graph = captured(lambda: y.copy_(x))
    graph.replay()
    x.fill_(7)
    graph.trace(tmp_path / "trace.json")
    assert y.tolist() == [7.0] * 4


def test_copies_need_no_memory_that_the_host_sees() -> None:
    code = """
import torch
from bringup import devices, graphs
devices.load_driver("sim")
x, y = torch.arange(6.0, device="npu"), torch.zeros(6, device="npu")
graph = graphs.CapturedGraph()
with graphs.capture(graph):
    y.copy_(x)
    z = y.clone()
x.add_(1)
graph.replay()
print(y.tolist(), z.tolist())
"""
    numbers = "[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]"
    assert output_of(code, BRINGUP_SIM_ISOLATED="1") == f"{numbers} {numbers}"
