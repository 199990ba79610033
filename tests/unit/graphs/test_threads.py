"""Several threads on one graph: bare replays at once raise in all of them, one after the other they
do not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import torch
from tests.unit.graphs.support import captured

from bringup import devices, graphs
from bringup.errors import CaptureError

AT_ONCE = r"two threads replay this graph at once.*Use graph\.run\(inputs\)"


@dataclass
class Gate:
    """Inside a captured operator: tells that it was reached, and waits until it may go on."""

    closed: bool = False
    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)
    within: Callable[[], None] = lambda: None

    def pass_through(self) -> None:
        self.within()
        if self.closed:
            self.reached.set()
            assert self.opened.wait(timeout=240)


_gate = Gate()


@torch.library.custom_op("graphs_threads_test::gated", mutates_args=())
def gated(x: torch.Tensor) -> torch.Tensor:
    """x + 1, after the gate."""
    _gate.pass_through()
    return x + 1


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A new gate for `gated`, open at the end."""
    global _gate
    _gate = Gate()
    yield _gate
    _gate.closed = False
    _gate.opened.set()


def test_two_bare_replays_at_once_raise_in_both_threads(gate: Gate) -> None:
    x = torch.zeros(2)
    graph, output = captured(lambda: gated(x))
    gate.closed = True
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(graph.replay)
        assert gate.reached.wait(timeout=240)
        with pytest.raises(CaptureError, match=AT_ONCE):
            graph.replay()
        with pytest.raises(CaptureError, match=AT_ONCE):
            graph.replay()
        gate.opened.set()
        with pytest.raises(CaptureError, match=AT_ONCE):
            first.result(timeout=240)
    gate.closed = False
    x.fill_(4)
    graph.replay()
    assert output.tolist() == [5, 5]


def test_replays_one_after_the_other_from_several_threads_are_no_conflict() -> None:
    total, lock = torch.zeros(1), threading.Lock()
    graph, _ = captured(lambda: total.add_(1))

    def replay() -> None:
        for _ in range(200):
            with lock:
                graph.replay()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(replay) for _ in range(4)]:
            done.result()
    assert total.item() == 800


def test_graph_that_replays_itself_is_refused(gate: Gate) -> None:
    x = torch.zeros(2)
    graph, output = captured(lambda: gated(x))
    gate.within = graph.replay
    with pytest.raises(RuntimeError, match=AT_ONCE):
        graph.replay()
    gate.within = lambda: None
    graph.replay()
    assert output.tolist() == [1, 1]


def test_failed_replay_leaves_no_conflict_behind() -> None:
    index = torch.tensor([1])
    graph, output = captured(lambda: torch.nn.functional.embedding(index, torch.ones(3, 2)))
    index.fill_(7)
    for _ in range(2):
        with pytest.raises(IndexError):
            graph.replay()
    index.fill_(0)
    graph.replay()
    assert output.tolist() == [[1, 1]]


def test_launches_from_several_threads_on_the_npu_are_no_conflict_while_the_device_works(
    gate: Gate,
) -> None:
    devices.load_driver("sim")
    x = torch.zeros(2, device="npu")
    graph, output = captured(lambda: gated(x))
    gate.closed = True
    graph.replay()
    assert gate.reached.wait(timeout=240)  # the device is in the middle of it
    with ThreadPoolExecutor(1) as pool:
        pool.submit(graph.replay).result(timeout=240)
    gate.closed = False
    gate.opened.set()
    torch.npu.synchronize()
    assert output.cpu().tolist() == [1, 1]


def run_graph(gate: Gate) -> graphs.CapturedGraph:
    """`run(x)` gives x + 1."""
    graph, x = graphs.CapturedGraph(), torch.zeros(2)
    with graphs.capture(graph, inputs=x):
        graph.outputs = gated(x)
    return graph


def test_a_replay_during_a_run_raises_in_both_threads(gate: Gate) -> None:
    graph = run_graph(gate)
    gate.closed = True
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(graph.run, torch.ones(2))
        assert gate.reached.wait(timeout=240)
        with pytest.raises(CaptureError, match=AT_ONCE):
            graph.replay()
        gate.opened.set()
        with pytest.raises(CaptureError, match=r"called replay\(\) while CapturedGraph\.run was"):
            run.result(timeout=240)
    gate.closed = False
    assert graph.run(torch.ones(2)).tolist() == [2, 2]


def test_a_run_during_a_replay_raises_in_both_threads(gate: Gate) -> None:
    graph = run_graph(gate)
    gate.closed = True
    with ThreadPoolExecutor(1) as pool:
        replay = pool.submit(graph.replay)
        assert gate.reached.wait(timeout=240)
        with pytest.raises(CaptureError, match=AT_ONCE):
            graph.run(torch.ones(2))
        gate.opened.set()
        with pytest.raises(CaptureError, match=AT_ONCE):
            replay.result(timeout=240)
    gate.closed = False
    assert graph.run(torch.ones(2)).tolist() == [2, 2]


def test_runs_wait_for_one_another(gate: Gate) -> None:
    graph = run_graph(gate)
    gate.closed = True
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(graph.run, torch.ones(2))
        assert gate.reached.wait(timeout=240)
        others = [pool.submit(graph.run, torch.full((2,), float(n))) for n in (5, 6)]
        gate.closed = False
        gate.opened.set()
        assert first.result(timeout=240).tolist() == [2, 2]
        assert [other.result(timeout=240).tolist() for other in others] == [[6, 6], [7, 7]]


def test_graph_that_runs_itself_is_refused(gate: Gate) -> None:
    graph = run_graph(gate)
    gate.within = lambda: graph.run(torch.ones(2))
    with pytest.raises(RuntimeError, match="the graph is in the middle of a run"):
        graph.run(torch.ones(2))
    gate.within = lambda: None
    assert graph.run(torch.ones(2)).tolist() == [2, 2]


def test_compiled_functions_of_several_threads_are_captured_one_after_the_other() -> None:
    options = {"capture": True, "passes": []}

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) * 2

    def other(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) - 1

    compiled = [torch.compile(f, backend="bringup", options=options) for f in (function, other)]

    def call(seed: int) -> bool:
        right = True
        with torch.no_grad():
            for step in range(6):
                x = torch.full((2 + step % 3,), float(seed + step))
                which = (seed + step) % 2
                right &= torch.equal(compiled[which](x), (function, other)[which](x))
        return right

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(call, range(6)))
