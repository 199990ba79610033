"""One graph of two devices: its parts run on either, one after the other, ordered by events."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from tests.unit.graphs.support import captured
from tests.unit.graphs.test_npu import SHIFT
from torch import Tensor

from bringup import devices, graphs, jit, ops
from bringup.errors import CaptureError

_opened = threading.Event()


@torch.library.custom_op("graphs_two_test::held", mutates_args=())
def held(x: Tensor) -> Tensor:
    """x, when the test lets go."""
    assert _opened.wait(timeout=240)
    return x.clone()


@pytest.fixture(autouse=True)
def _open() -> Iterator[None]:
    devices.load_driver("sim")
    _opened.set()
    yield
    _opened.set()


@pytest.fixture(scope="module")
def shift(kernel_cache: object) -> Iterator[ops.KernelOperator]:
    """`shift(x, n)`: x + n, device code; fails for n = 99."""
    devices.load_driver("sim")
    operator = ops.kernel_op(
        "graphs_two_test::shift(Tensor x, int n) -> Tensor",
        source=jit.Source(text=SHIFT, name="shift.cpp"),
        outputs=ops.empty_like("x"),
        kind="device",
    )
    yield operator
    operator.undefine()


def _inputs() -> tuple[Tensor, Tensor]:
    return torch.ones(3, device="npu:0"), torch.full((3,), 2.0, device="npu:1")


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_replay_gives_what_eager_gives_on_both(level: int, shift: ops.KernelOperator) -> None:
    here, there = _inputs()
    total = torch.zeros(3, device="npu:1")

    def run() -> tuple[Tensor, ...]:
        a = shift(here, 1) * 2
        event = torch.npu.current_stream("npu:0").record_event()
        torch.npu.current_stream("npu:1").wait_event(event)
        b = shift(a.to("npu:1") + there, 3)
        total.add_(b)
        c = shift(b.to("npu:0") - here, 5)
        return a, b, c, shift(total, 0).relu() * shift(there, 2)

    graph = graphs.CapturedGraph(optimize=level)
    with graphs.capture(graph):
        results = run()
    assert graph.wait_for_functions()
    assert total.tolist() == [0] * 3
    for value in (1.0, -4.0):
        here.fill_(value)
        there.fill_(value / 4)
        graph.replay()
        replayed, left = [one.cpu() for one in results], total.cpu()
        total.zero_()
        for one, other in zip(replayed, run(), strict=True):
            assert torch.equal(one, other.cpu())
        assert torch.equal(left, total.cpu())
        total.zero_()
    graph.update({"shift.1.n": 7, "shift.2.n": -7})
    graph.replay()
    assert torch.equal(results[1].cpu(), (results[0].cpu() + there.cpu() + 7))
    assert torch.equal(results[2].cpu(), results[1].cpu() - here.cpu() - 7)


def test_both_generators_are_drawn_from() -> None:
    here, there = _inputs()

    def run() -> tuple[Tensor, Tensor]:
        a = torch.nn.functional.dropout(here, 0.5, True)
        b = torch.rand_like(there) + a.to("npu:1")
        return a + torch.rand_like(here), b

    graph, results = captured(run)
    for seed in (1, 2):
        torch.npu.manual_seed_all(seed)
        expected = [one.cpu() for one in run()]
        torch.npu.manual_seed_all(seed)
        graph.replay()
        assert all(torch.equal(a.cpu(), b) for a, b in zip(results, expected, strict=True))


def test_what_one_device_computes_waits_for_the_other(shift: ops.KernelOperator) -> None:
    here, there = _inputs()

    def run() -> tuple[Tensor, Tensor]:
        a = shift(held(there), 1)
        return a, shift(a.to("npu:0") + here, 1)

    graph, (a, b) = captured(run)
    _opened.clear()
    there.fill_(5)
    graph.replay()
    graph.replay()  # launches are in order on both
    done = torch.npu.current_stream("npu:0").record_event()
    assert not done.query()
    there.fill_(50)  # behind both, in the other device's stream
    _opened.set()
    assert (a.tolist(), b.tolist()) == ([6] * 3, [8] * 3)


def test_a_run_copies_in_and_out_on_both(shift: ops.KernelOperator) -> None:
    here, there = _inputs()
    graph = graphs.CapturedGraph()
    with graphs.capture(graph, inputs=(here, there)):
        graph.outputs = (shift(here, 1), shift(there, 1) + shift(here, 2).to("npu:1"))
    for value in range(3):
        one, other = graph.run(torch.full_like(here, value), torch.full_like(there, 10 * value))
        assert one.tolist() == [value + 1] * 3
        assert other.tolist() == [11 * value + 3] * 3


def test_a_branch_of_a_graph_of_two_devices_is_followed_by_the_host(
    shift: ops.KernelOperator,
) -> None:
    here, there = _inputs()

    def run() -> Tensor:
        (y,) = torch.ops.higher_order.cond(
            here[0] > 0,
            lambda x, y: (shift(x.to("npu:1") + y, 1),),
            lambda x, y: (shift(y, 2),),
            (here, there),
        )
        return y

    graph, y = captured(run)
    for value in (1.0, -1.0, 3.0):
        here.fill_(value)
        graph.replay()
        assert torch.equal(y.cpu(), run().cpu())


def test_a_failure_on_the_second_device_is_raised(shift: ops.KernelOperator) -> None:
    here, there = _inputs()
    graph, (_, b) = captured(lambda: (here + 1, shift(there, 1)))
    graph.update({"shift.n": 99})
    graph.replay()
    for place in ("npu:1", "npu:0"):  # its stream waited for the one that failed
        with pytest.raises(RuntimeError, match="99 is too far"):
            torch.npu.synchronize(place)
    graph.update({"shift.n": 2})
    graph.replay()
    assert b.tolist() == [4] * 3


def test_a_side_stream_of_the_second_device_is_joined(shift: ops.KernelOperator) -> None:
    here, there = _inputs()
    side = torch.npu.Stream("npu:1")

    def run(joins: bool) -> Tensor:
        y = here + 1
        with side:
            z = shift(there, 1)
        if joins:
            torch.npu.current_stream("npu:1").wait_stream(side)
        return y.to("npu:1") * z

    with pytest.raises(CaptureError, match="ran in a side stream that the capture's stream does"):
        captured(run, False)
    graph, y = captured(run, True)
    graph.replay()
    assert y.tolist() == [6] * 3
