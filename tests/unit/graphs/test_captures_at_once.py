"""Captures that are under way at one time, in several threads: each sees its own thread's work, and
puts back what it changed itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tests.unit.graphs.support import captured
from torch import Tensor

from bringup import devices, graphs
from bringup.errors import CaptureError

Made = tuple[graphs.CapturedGraph, Tensor]


class Step(torch.nn.Module):
    """Draws, and writes a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.nn.functional.dropout(self.layer(x), 0.5, True)
        self.total.add_(y.sum(0))
        return y + self.total


def _in_threads(*calls: Callable[[], Made | str]) -> list[Made | str]:
    """Results of calls that run at once."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [done.result(timeout=240) for done in [pool.submit(call) for call in calls]]


def _refused(work: Callable[[], object], *, before: Callable[[], object] = lambda: None) -> str:
    """What the capture of `work` is refused with; `before` runs in the block as it begins."""
    try:
        with graphs.capture(graphs.CapturedGraph()):
            before()
            work()
    except CaptureError as error:
        return str(error)
    return ""


class Turns:
    """Two threads in turn: `first` runs between the beginning and the work of the other."""

    def __init__(self) -> None:
        self.begun, self.worked, self.over = (threading.Event() for _ in range(3))

    def other(self, work: Callable[[], object]) -> str:
        """Begin a capture, let the first one work, and work."""
        said = _refused(work, before=lambda: (self.begun.set(), self._wait(self.worked)))
        self.over.set()
        return said

    def first(self, work: Callable[[], object]) -> None:
        """Work, and end behind the other capture."""
        self._wait(self.begun)
        work()
        self.worked.set()
        self._wait(self.over)

    @staticmethod
    def _wait(event: threading.Event) -> None:
        assert event.wait(timeout=240)


def _beside(first: Callable[[], object], other: Callable[[], object]) -> tuple[str, str]:
    """What two captures are refused with of which each begins before the other one ends; `first`
    works before `other` does.
    """
    turns = Turns()
    with ThreadPoolExecutor(1) as pool:
        told: Future[str] = pool.submit(turns.other, other)
        said = _refused(lambda: turns.first(first))
        return said, told.result(timeout=240)


_opened, _reached = threading.Event(), threading.Event()
_array = np.zeros(2)
_tensor = torch.from_numpy(_array)


@torch.library.custom_op("graphs_at_once_test::held", mutates_args=())
def held(x: Tensor) -> Tensor:
    """x, when the test lets go."""
    _reached.set()
    assert _opened.wait(timeout=240)
    return x.clone()


@pytest.fixture(scope="module", autouse=True)
def _sim() -> None:
    devices.load_driver("sim")


@pytest.mark.parametrize("places", [("npu:0", "npu:1"), ("cpu", "npu:1")])
def test_graphs_of_two_devices_that_draw_and_write(places: tuple[str, str]) -> None:
    models = [Step().to(place) for place in places]
    inputs = [torch.randn(3, 4).to(place) for place in places]
    torch.manual_seed(3)
    states = [torch.get_rng_state(), *(torch.npu.get_rng_state(i) for i in range(2))]
    barrier = threading.Barrier(2, timeout=240)

    def capture(number: int) -> Made:
        graph = graphs.CapturedGraph()
        with torch.no_grad(), graphs.capture(graph):
            barrier.wait()  # both are under way
            y = models[number](inputs[number])
            barrier.wait()  # and have worked
            return graph, y

    made = _in_threads(lambda: capture(0), lambda: capture(1))
    for one, state in zip(
        [torch.get_rng_state(), *map(torch.npu.get_rng_state, range(2))], states, strict=True
    ):
        assert torch.equal(one, state)
    for (graph, y), model, x in zip(made, models, inputs, strict=True):
        assert model.total.tolist() == [0] * 4
        torch.manual_seed(7)
        graph.replay()
        replayed, total = y.clone(), model.total.clone()
        model.total.zero_()
        torch.manual_seed(7)
        with torch.no_grad():
            assert torch.equal(model(x), replayed)
        assert torch.equal(model.total, total)
    assert torch.utils.checkpoint._enable_checkpoint_early_stop is None


def test_a_capture_whose_device_is_not_done_holds_no_other_up() -> None:
    x, y = torch.zeros(3, device="npu:0"), torch.ones(3, device="npu:1")
    _opened.set()

    def slow() -> Made:
        graph = graphs.CapturedGraph()
        with graphs.capture(graph):
            result = held(x)
            _opened.clear()
            _reached.clear()
        return graph, result

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(slow)
        try:
            assert _reached.wait(timeout=240)  # the first replay, at the end of the capture
            other, z = captured(lambda: y + 1)
            y.fill_(4)
            other.replay()
            assert z.tolist() == [5] * 3
            assert not first.done()
        finally:
            _opened.set()
        graph, result = first.result(timeout=240)
    x.fill_(7)
    graph.replay()
    assert result.tolist() == [7] * 3


def test_a_tensor_that_both_would_write_is_refused() -> None:
    total, kept = torch.zeros(2), torch.zeros(2)
    first, other = _beside(lambda: (total.add_(1), kept.add_(1)), lambda: total.mul_(3))
    assert first == ""
    assert "aten::mul_.Tensor writes float32[2], and so does a capture in another thread" in other
    assert total.tolist() == kept.tolist() == [0, 0]


@pytest.mark.parametrize("place", ["npu:0", "npu:1"])
def test_a_generator_of_a_device_that_both_draw_from_is_refused_in_both(place: str) -> None:
    x = torch.ones(8, device=place)
    before = torch.npu.get_rng_state(place)
    refusals = _beside(
        lambda: torch.nn.functional.dropout(x, 0.5, True), lambda: torch.rand_like(x)
    )
    for said in refusals:
        assert (
            f"draws from the torch.Generator of {place}, and so does a capture in another" in said
        )
    assert torch.equal(torch.npu.get_rng_state(place), before)


def test_generators_that_share_a_state_are_one() -> None:
    one = torch.Generator("npu:0")
    other = torch.Generator("npu:0")
    other.graphsafe_set_state(one.graphsafe_get_state())
    x = torch.empty(8, device="npu:0")
    refusals = _beside(
        lambda: x.clone().normal_(generator=one), lambda: x.clone().normal_(generator=other)
    )
    assert all("and so does a capture in another thread" in said for said in refusals)


def test_the_generator_of_the_host_that_both_draw_from_is_refused() -> None:
    before = torch.get_rng_state()
    _, other = _beside(lambda: torch.rand(4), lambda: torch.rand(4))
    assert "draws from the torch.Generator of cpu, and so does a capture in another" in other
    assert torch.equal(torch.get_rng_state(), before)
    captured(lambda: torch.rand(4))  # alone again


def test_what_a_capture_leaves_to_the_other_thread_is_not_taken_for_unseen() -> None:
    """Both can reach `total`, which one writes: the other ends while it is written."""
    total, x = torch.zeros(2), torch.ones(2)

    def reads() -> Tensor:
        assert total.shape == x.shape
        return x + 1

    assert _beside(lambda: total.add_(1), reads) == ("", "")
    assert total.tolist() == [0, 0]


def test_a_generator_that_the_other_capture_moved_and_put_back_is_as_it_was() -> None:
    """The other capture begins and ends beside the first one, which draws behind it."""
    x = torch.ones(8, device="npu:0")
    before = torch.npu.get_rng_state(0)
    graph, said = graphs.CapturedGraph(), []
    with ThreadPoolExecutor(1) as pool, graphs.capture(graph):
        other = pool.submit(_refused, lambda: torch.rand_like(x))
        said.append(other.result(timeout=240))
        y = torch.rand_like(x)
    assert said == [""]
    assert torch.equal(torch.npu.get_rng_state(0), before)
    graph.replay()
    torch.npu.set_rng_state(before, 0)
    assert torch.equal(torch.rand_like(x), y)
    torch.npu.set_rng_state(before, 0)


def test_graphs_of_one_device_have_memory_of_their_own() -> None:
    barrier = threading.Barrier(2, timeout=240)
    x = torch.zeros(64, device="npu:0")

    def capture(number: int) -> Made:
        graph = graphs.CapturedGraph()
        with graphs.capture(graph):
            barrier.wait()
            y = x
            for _ in range(20):
                y = y + number
            barrier.wait()
            return graph, y

    made = _in_threads(*(lambda number=number: capture(number) for number in (1, 2)))
    x.fill_(5)
    for graph, _ in made:
        graph.replay()
    assert [y.unique().tolist() for _, y in made] == [[25.0], [45.0]]


def _write_array() -> Tensor:
    assert _tensor.numel() == 2
    np.add(_array, 1, out=_array)
    return _tensor


@pytest.mark.parametrize(
    ("own", "refusal"),
    [
        (lambda x: x + 1, ""),
        (lambda x: _write_array() + x, "'_tensor' (float64[2]) was written inside the capture by"),
        (lambda x: held(x), "'weights' (float32[4]) was written inside the capture by code"),
    ],
)
def test_what_another_thread_writes_stays(own: Callable[[Tensor], Tensor], refusal: str) -> None:
    """It is in reach, too. Beside an operator that may have written anything it is refused."""
    weights, x = torch.zeros(4), torch.ones(2)
    _opened.set()

    def both() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(weights.add_, 1).result(timeout=240)
        own(x)

    said = _refused(both)
    assert refusal in said
    assert bool(said) == bool(refusal)
    assert weights.tolist() == [1] * 4
    assert _tensor.tolist() == [0, 0]
