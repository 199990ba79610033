"""Level 2 of a replay for what the device itself runs: operators whose kernels are expressions as
one kernel of its target.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.forked_python import run_forked
from tests.unit.graphs.test_fused_runs import fused, levels
from torch import Tensor

from bringup import devices, graphs
from bringup.devices import POINTWISE, sim
from bringup.errors import BringupError
from bringup.graphs import _fuse_build, _fuse_device

NAMES = ("add", "mul", "relu", "clamp", "maximum", "log_sigmoid_forward", "uniform")
OPERATORS = {f"aten::{name}" for name in (*NAMES, "where.self", "gt.Scalar")}
EVERYTHING = ("floating", "integral", "bool")


@contextmanager
def loaded_kernels() -> Iterator[None]:
    """The simulator with kernels of some operators."""
    devices.load_driver("sim")
    table = devices.OperatorTable(
        [
            *(row for row in POINTWISE if row.name in OPERATORS),
            devices.Operator("aten::copy.out", EVERYTHING, "src"),
        ]
    )
    table.load()
    yield
    table.unload()


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> Iterator[None]:
    with loaded_kernels():
        yield


class Numbers(graphs.GraphOpHandler):
    UPDATE_SPECS: ClassVar = {
        "clamp": [("arg", 1, "low")],
        "add": [("kwarg", "alpha", "alpha"), ("arg", 1, "other")],
    }


def kernels_of(replay: Callable[[], object]) -> int:
    """Return how many kernels the device runs in a replay."""
    with sim.faults() as seen:
        replay()
        torch.npu.synchronize()
    return seen.functions["graph_kernel"].calls if "graph_kernel" in seen.functions else 0


PROGRAMS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "a chain": (1, lambda x: torch.relu(x) * 0.3 + x),
    "in place": (1, lambda x: (x + 1).mul_(x).add_(x).relu_().clamp_(-1, 2)),
    "choices": (1, lambda x: torch.where(x > 0, x, x * -2).maximum(x * 2)),
    "casts": (2, lambda x: ((x.bfloat16() * 0.1 + 0.1).float() * x).to(torch.float16) + 0.1),
    "half": (1, lambda x: torch.relu(x.half() * 0.1 + 0.1) * 3),
    "whole numbers": (1, lambda x: torch.relu(x.int() * 3 + 1).clone().add_(2)),
    "a copy first": (1, lambda x: x.clone().mul_(2).add_(x)),
    "broadcast and strided": (1, lambda x: (x[:, :1] + x.t()[:3, :3].t()) * x[::2][:1, 1:2]),
    "two shapes": (2, lambda x: ((x[0] + 1) * 3 + 1) * ((x + x[1]) * 2)[2]),
    "every second in place": (2, lambda x: x.clone().flatten()[::2].mul_(0.1).add_(0.1)),
    "more tensors than a launch has": (
        4,
        lambda x: reduce(torch.add, [x.as_strided((2, 2), (2, 3), i) for i in range(7)]),
    ),
    "two types": (3, lambda x: (x * 0.1 + 0.1).double() * 0.1 + 0.1),
    "shifted in place": (2, lambda x: (x + 1)[:, 1:].add_((x + 1)[:, :-1]) * 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_operators_of_the_device_become_one_kernel_with_their_bits(name: str) -> None:
    most, function = PROGRAMS[name]
    x = torch.randn(3, 4).to("npu")
    graph, result = fused(function, x)
    assert 2 in levels(graph)
    assert kernels_of(graph.replay) - levels(graph).count(0) <= most < len(levels(graph))
    for special in (1.0, float("inf"), -0.0, 65504.0, 1e-40, 3.3e38, 2.0):
        fresh = torch.randn(3, 4)
        fresh[1, 2] = fresh[0, 0] = special
        x.copy_(fresh)
        graph.replay()
        expected = function(x).cpu()
        assert torch.equal(result.cpu().isnan(), expected.isnan())
        bits = [one.cpu().nan_to_num(0.5).contiguous() for one in (result, expected)]
        assert torch.equal(*(one.view(-1).view(torch.uint8) for one in bits)), special


def test_an_operator_of_a_vendor_goes_into_the_kernel() -> None:
    with torch.library._scoped_library("graphs_device", "DEF") as library:
        library.define("mixed(Tensor x, Tensor y, float share=0.25) -> Tensor")
        library.impl("mixed", lambda x, y, share=0.25: torch.empty_like(x), "Meta")
        handle = devices.kernel("graphs_device::mixed", expression="x + share * (y - x)")
        x = torch.randn(1000).to("npu")
        graph, result = fused(lambda: torch.ops.graphs_device.mixed(x * 3, x, 0.7) + 1)
        assert levels(graph) == [2, 2, 2]
        x.copy_(torch.randn(1000))
        graph.replay()
        expected = torch.ops.graphs_device.mixed(x * 3, x, 0.7) + 1
        assert torch.equal(result.cpu(), expected.cpu())
        handle.close()


@pytest.mark.usefixtures("handlers")
def test_updates_reach_the_kernel_and_other_tensors_bring_the_nodes_back() -> None:
    graphs.register_graph_handler("clamp")(Numbers)
    graphs.register_graph_handler("add")(Numbers)
    x, y, z = (torch.full((4,), value, device="npu") for value in (1.0, 2.0, 3.0))
    graph, result = fused(lambda: torch.add(x * 2, y, alpha=3).clamp(0))
    for alpha, low, other in ((4, 0, y), (4, 100, y), (-3, -2, y), (-3, -2, z), (2, -9, y)):
        graph.update({"add.alpha": alpha, "clamp.low": low, "add.other": other})
        graph.replay()
        assert result.tolist() == [max(2 + alpha * other[0].item(), low)] * 4
        assert levels(graph) == ([2, 2, 2] if other is y else [0, 0, 0])
        assert other is y or "an update gave arguments" in graph.levels()[0].reason
        assert graph.slots["clamp.0.low"].value == low


def test_what_a_later_operator_reads_is_written_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[_fuse_device.DeviceWritten] = []
    write = _fuse_device.DeviceWriter.write
    monkeypatch.setattr(
        _fuse_device.DeviceWriter, "write", lambda self: written.append(write(self)) or written[-1]
    )
    x = torch.randn(8).to("npu")

    def program() -> tuple[Tensor, Tensor]:
        kept = x * 2
        return kept, torch.relu(kept + 1).mul(3).cumsum(0)

    graph, (kept, total) = fused(program)
    assert [one.nodes for one in written] == [(0, 4)]
    tensors = [one for one in written[0].given if one.address]
    assert len(tensors) == 3  # x, kept, and what is summed
    graph.replay()
    assert torch.equal(kept.cpu(), (x * 2).cpu())
    assert torch.equal(total.cpu(), program()[1].cpu())


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x + 1, "no neighbour"),
        (lambda x: torch.ops.aten.log_sigmoid_forward(x + 1)[0], "several results"),
        (lambda x: (x + 1).uniform_(), "random numbers"),
        (lambda x: (x + 1).cumsum(0), "no neighbour"),
        (
            lambda x: torch.add(x, 1, out=torch.empty(4, dtype=torch.float64, device="npu")),
            "computes in float, for a result of double",
        ),
    ],
)
def test_what_is_no_part_of_a_kernel_says_why(
    function: Callable[[Tensor], Any], reason: str
) -> None:
    x = torch.randn(4).to("npu")
    graph, _ = fused(function, x)
    assert 2 not in levels(graph)
    assert any(reason in node.reason for node in graph.levels()), graph.levels()


def test_functions_that_depend_on_the_kernel_around_them_stay_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from bringup.jit.source.cpp_writer import CppWriter

    monkeypatch.setattr(CppWriter, "repeated", frozenset())
    devices.kernel("aten::exp", expression="exp(x)").close()
    handle = devices.kernel("aten::exp", expression="exp(x)")
    graph, _ = fused(lambda x: torch.exp(x * 2 + 1), torch.ones(4, device="npu"))
    assert [node.level for node in graph.levels()] == [2, 2, 0]
    assert "exp may give something else" in graph.levels()[2].reason
    handle.close()


@pytest.mark.parametrize("fails", ["compiler", "driver", None])
def test_a_switch_waits_for_no_launch_and_a_failure_leaves_the_nodes(
    fails: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = threading.Event()
    compiled = _fuse_device.DeviceWritten.kernel_id

    def compile_later(self: _fuse_device.DeviceWritten) -> int:
        assert opened.wait(60)
        if fails == "compiler":
            raise BringupError("no compiler today")
        return compiled(self)

    monkeypatch.setattr(_fuse_device.DeviceWritten, "kernel_id", compile_later)
    monkeypatch.setattr(_fuse_build.worker, "warned", True)
    total, x = torch.zeros(5, device="npu"), torch.ones(5, device="npu")
    graph = graphs.CapturedGraph(optimize=2)
    with graphs.capture(graph):
        total.copy_(total * 2 + x)
    event = graphs.ExternalEvent()
    event.wait(torch.npu.current_stream())
    graph.replay()  # behind the event
    with sim.faults(fail="graph_add_values" if fails == "driver" else ()):
        opened.set()
        assert graph.wait_for_functions(60)
    graph.replay()
    event.record()
    graph.replay()
    assert total.tolist() == [7.0] * 5
    assert set(levels(graph)) == ({0} if fails else {2})
    if fails:
        words = "no compiler today" if fails == "compiler" else "graph_add_values"
        assert words in graph.levels()[0].reason


def test_a_kernel_that_fails_names_its_operators_and_the_next_replay_is_right() -> None:
    x = torch.ones(4, device="npu")
    graph, result = fused(lambda: torch.relu(x * 2 + 1))
    name = "aten::mul.Tensor to aten::relu (3 operators of a captured graph)"
    with sim.faults(fail="graph_kernel", operator=name):
        graph.replay()
        with pytest.raises(RuntimeError, match=r"aten::mul\.Tensor to aten::relu"):
            torch.npu.synchronize()
    x.fill_(2)
    graph.replay()
    assert result.tolist() == [5.0] * 4


def test_verified_replays_find_a_kernel_that_gives_other_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BRINGUP_GRAPH_VERIFY", "2")
    monkeypatch.setattr(_fuse_device, "ROUNDED", {"bringup::half": "abs"})
    x = torch.full((4,), 2.0, device="npu").half()
    graph, (y, _) = fused(lambda: (y := torch.relu(x * 3 + 1) + x, y.cumsum(0)))
    assert levels(graph)[:4] == [2] * 4
    graph.replay()
    x.fill_(-2)
    graph.replay()  # is not compared
    assert y.tolist() == [5.0] * 4
    with pytest.raises(RuntimeError, match=r"level 2 gave other bits.*in node 0.*aten::mul"):
        graph.replay()
    assert y.tolist() == [-2.0] * 4


def test_verified_replays_wait_for_all_but_events_and_take_any_nan_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BRINGUP_GRAPH_VERIFY", "1")
    x, event = torch.ones(3, 4, device="npu"), graphs.ExternalEvent()
    y, expected = torch.zeros(3, 2, device="npu"), torch.zeros(3, 2)
    graph, total = fused(lambda: y.mul_(0.5).add_(torch.relu(x[:, ::2] * 2 + 1)).cumsum(0))
    assert levels(graph).count(2) == 5
    for special in (float("nan"), -float("nan"), float("inf"), -0.0):
        x.copy_(torch.randn(3, 4).index_fill_(1, torch.tensor([2]), special))
        graph.replay()
        expected.mul_(0.5).add_(torch.relu(x[:, ::2] * 2 + 1).cpu())
        assert torch.equal(y.cpu().nan_to_num(7), expected.nan_to_num(7))
        assert torch.equal(total.cpu().nan_to_num(7), expected.cumsum(0).nan_to_num(7))
    waiting = graphs.CapturedGraph(optimize=2)
    with graphs.capture(waiting):
        event.wait(torch.npu.current_stream())
        y = torch.relu(x * 2 + 1)
    assert waiting.wait_for_functions(60)
    waiting.replay()  # returns before the event
    event.record()
    assert torch.equal(y.cpu().nan_to_num(7), torch.relu(x * 2 + 1).cpu().nan_to_num(7))


SECOND = """
import torch
from bringup import devices, graphs, jit
from tests.unit.graphs.test_device_kernels import loaded_kernels
with loaded_kernels():
    before = [torch.ones(size, device="npu") for size in range(1, {addresses})]
    x, graph = torch.ones(3, device="npu"), graphs.CapturedGraph(optimize=2)
    {freeze}
    with torch.no_grad(), graphs.capture(graph):
        y = (x + 1) * x
    assert graph.wait_for_functions(60)
    x.fill_(2)
    graph.replay()
    assert y.tolist() == [6.0] * 3, y
    print({{node.level for node in graph.levels()}}, end="")
"""


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "BRINGUP_CACHE_DIR": str(tmp_path)}
    for addresses, freeze in enumerate(("", "jit.freeze()"), start=1):
        code = SECOND.format(freeze=freeze, addresses=addresses)
        done = run_forked(code, environment=environment)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "{2}", done.stderr
