"""Level 2 of a replay on a driver's device: functions do the work of nodes that run on the host."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from tests.unit.graphs.test_fused_runs import PROGRAMS, X, fused, levels, same_bits
from torch import Tensor

from bringup import devices, graphs
from bringup.errors import BringupError
from bringup.graphs import _fuse, _fuse_build


@pytest.fixture(scope="module", autouse=True)
def _npu() -> None:
    devices.load_driver("sim")


class Gate:
    """Where a captured operator, or the compilation of functions, waits while it is closed."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        assert self.opened.wait(60)

    def wait_until_reached(self) -> None:
        assert self.reached.wait(60)


_device = Gate()


@torch.library.custom_op("graphs_fused_test::gated", mutates_args=())
def gated(x: Tensor) -> Tensor:
    """A copy of x, behind the gate of the device."""
    _device.pass_through()
    return x.clone()


@pytest.fixture
def device() -> Iterator[Gate]:
    """A new gate of the device, open until the test closes it, and open at the end."""
    global _device
    _device = gate = Gate()
    gate.opened.set()
    yield gate
    gate.opened.set()


class Add(graphs.GraphOpHandler):
    UPDATE_SPECS: ClassVar = {"add": [("kwarg", "alpha", "alpha"), ("arg", 1, "other")]}


@pytest.mark.parametrize("name", PROGRAMS)
def test_functions_give_the_bits_of_torch_on_a_device(name: str) -> None:
    x = X.to("npu")
    graph, result = fused(PROGRAMS[name], x)
    assert 2 in levels(graph)
    for special in (1.0, float("nan"), -0.0, 2.0, 1e-40):
        fresh = torch.randn(3, 4)
        fresh[1, 2] = fresh[0, 0] = special
        x.copy_(fresh)
        graph.replay()
        assert same_bits(result.cpu(), PROGRAMS[name](x).cpu()), special


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("compiles", [True, False])
def test_a_switch_waits_for_no_launch_and_loses_no_update(
    compiles: bool, device: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, compiled = Gate(), _fuse_build.compile_bodies

    def compile_later(bodies: list[str]) -> list[int]:
        compiler.pass_through()
        if not compiles:
            raise BringupError("no compiler today")
        return compiled(bodies)

    monkeypatch.setattr(_fuse_build, "compile_bodies", compile_later)
    graphs.register_graph_handler("add")(Add)
    x, other, new, total = (torch.full((5,), 1.0 + i, device="npu").double() for i in range(4))
    expected, values = total.cpu(), {other: other.cpu(), new: new.cpu()}
    graph = graphs.CapturedGraph(optimize=2)
    with graphs.capture(graph):
        total.copy_(total * 2 - torch.add(gated(x), other, alpha=1) * 2)

    def launch(alpha: int, given: Tensor) -> None:
        graph.update({"add.alpha": alpha, "add.other": given})
        graph.replay()
        expected.mul_(2).sub_(2 * (1 + alpha * values[given]))

    compiler.wait_until_reached()  # the functions are written
    device.opened.clear()
    device.reached.clear()
    launch(2, other)
    device.wait_until_reached()  # in the midst of that launch
    launch(3, new)  # the function was written for another tensor
    compiler.opened.set()
    assert graph.wait_for_functions(60)  # handed over while the device stands still
    launch(4, other)
    launch(5, new)
    launch(6, other)
    device.opened.set()
    assert torch.equal(total.cpu(), expected)
    assert levels(graph).count(2) == (4 if compiles else 0)
    if not compiles:
        assert any("no compiler today" in node.reason for node in graph.levels())


def test_a_function_that_gives_other_bits_fails_its_launch_and_no_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BRINGUP_GRAPH_VERIFY", "2")
    rule = replace(_fuse.RULES["mul.Tensor"], text="{a} + {b}")
    monkeypatch.setitem(_fuse.RULES, "mul.Tensor", rule)
    x = torch.full((4,), 2.0, device="npu")
    graph, y = fused(lambda: x * 2)
    graph.replay()  # 2 * 2 is 2 + 2
    graph.replay()
    x.fill_(3)
    graph.replay()
    with pytest.raises(RuntimeError, match=r"aten::mul.*level 2 gave other bits"):
        torch.npu.synchronize()
    monkeypatch.setitem(_fuse.RULES, "mul.Tensor", replace(rule, text="{a} * {b}"))
    graph, y = fused(lambda: x * 2)
    graph.replay()
    assert y.tolist() == [6.0] * 4
