"""Events that order replays with the host and with other streams."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from bringup import devices, graphs

DEVICES = ["cpu", "npu"]


@pytest.fixture(scope="module", autouse=True)
def _npu() -> None:
    devices.load_driver("sim")


def in_thread(function: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def waiting_graph(
    device: str, event: graphs.ExternalEvent
) -> tuple[graphs.CapturedGraph, Tensor, Tensor]:
    """`y = x + 1`, once the event was recorded."""
    graph, x = graphs.CapturedGraph(), torch.zeros(3, device=device)
    with graphs.capture(graph):
        event.wait()
        event.reset()
        y = x + 1
    return graph, x, y


@pytest.mark.parametrize("device", DEVICES)
def test_a_replay_waits_for_its_record(device: str) -> None:
    event = graphs.ExternalEvent()
    graph, x, y = waiting_graph(device, event)
    for value in range(1, 5):
        thread = in_thread(graph.replay)
        while event.ahead == 0:  # until it waits
            threading.Event().wait(0.001)
        assert event.ahead == -1
        write(x, value)
        event.record()
        thread.join()
        assert y.tolist() == [value + 1] * 3
    assert event.ahead == 0


def replay_to_the_end(graph: graphs.CapturedGraph) -> None:
    graph.replay()
    torch.npu.synchronize()


def write(x: Tensor, value: float) -> None:
    """In a stream that does not wait for the replay."""
    if x.device.type == "cpu":
        x.fill_(value)
        return
    with torch.Stream("npu") as stream:
        x.fill_(value)
    stream.synchronize()


@pytest.mark.parametrize("device", DEVICES)
def test_records_before_their_replays_are_not_lost(device: str) -> None:
    event = graphs.ExternalEvent(limit=30)
    graph, x, y = waiting_graph(device, event)
    for _ in range(3):
        event.record()
    for value in range(3):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [value + 1] * 3
    assert event.ahead == 0


@pytest.mark.parametrize("device", DEVICES)
def test_a_replay_without_a_record_raises_and_names_what_waits(device: str) -> None:
    event = graphs.ExternalEvent(limit=0.05, name="lengths")
    graph, x, y = waiting_graph(device, event)
    with pytest.raises(
        RuntimeError,
        match=r"event 'lengths' was not recorded within 0.05 s, and aten::add.Tensor, called at "
        r".*test_events.py:\d+ in waiting_graph waits for it",
    ):
        replay_to_the_end(graph)
    assert event.ahead == -1
    event.record()  # it comes too late: that replay is over
    assert event.ahead == 0
    event.record()
    x.fill_(6)
    graph.replay()
    assert y.tolist() == [7] * 3


@pytest.mark.parametrize("device", DEVICES)
def test_the_host_waits_until_a_replay_comes_to_a_place(device: str) -> None:
    inside, go_on = graphs.ExternalEvent(), graphs.ExternalEvent()
    graph, x = graphs.CapturedGraph(), torch.zeros(3, device=device)
    with graphs.capture(graph):
        y = x + 1
        inside.record()
        go_on.wait()
        y.mul_(2)
    assert inside.ahead == 0  # the capture itself records nothing
    thread = in_thread(graph.replay)
    inside.wait()
    go_on.record()
    thread.join()
    assert y.tolist() == [2] * 3
    assert [node.op for node in graph.nodes if node.kind == "event"] == [
        "record_event",
        "wait_event",
    ]


def test_a_stream_records_after_its_work_and_another_waits() -> None:
    event, x = graphs.ExternalEvent(), torch.randn(300, 300, device="npu")
    graph, total = graphs.CapturedGraph(), torch.zeros((), device="npu")
    with graphs.capture(graph):
        event.wait()
        y = total + 1
    side = torch.Stream("npu")
    side.wait_stream(torch.accelerator.current_stream())
    graph.replay()  # launched before what it waits for
    with side:
        total.copy_((x @ x @ x).sum())
        event.record(side)
    torch.npu.synchronize()
    assert torch.equal(y, total + 1)


def test_a_stream_that_waits_too_long_is_told_by_the_next_synchronisation() -> None:
    event, stream = graphs.ExternalEvent(limit=0.05, name="late"), torch.Stream("npu")
    event.wait(stream)
    with pytest.raises(
        RuntimeError, match=r"event 'late' was not recorded within .* s, and a stream"
    ):
        stream.synchronize()
    event.reset()
    event.wait(stream)
    event.record()
    stream.synchronize()


@pytest.mark.parametrize("device", DEVICES)
def test_a_replay_that_fails_before_its_wait_leaves_no_record_to_the_next(device: str) -> None:
    event, fails = graphs.ExternalEvent(limit=0.05), [True]

    def check(_: Tensor) -> None:
        if fails[0]:
            raise ValueError("not now")

    graph, x = graphs.CapturedGraph(), torch.zeros(3, device=device)
    with graphs.capture(graph):
        y = x + 1
        graphs.host_function(check, y)
        event.wait()
        y.mul_(2)
    event.record()
    with pytest.raises(Exception, match="not now"):
        replay_to_the_end(graph)
    assert event.ahead == 0
    fails.clear()
    fails.append(False)
    event.record()
    graph.replay()
    assert y.tolist() == [2] * 3
    assert event.ahead == 0


def test_reset_ends_a_wait() -> None:
    event = graphs.ExternalEvent(name="dropped")
    graph, _, _ = waiting_graph("cpu", event)
    failed: list[str] = []

    def replay() -> None:
        try:
            graph.replay()
        except RuntimeError as error:
            failed.append(str(error))

    thread = in_thread(replay)
    while event.ahead == 0:
        threading.Event().wait(0.001)
    event.reset()
    thread.join()
    assert "event 'dropped' was reset while aten::add.Tensor" in failed[0]


def test_waits_of_one_replay_share_a_record_unless_it_is_reset_between_them() -> None:
    event, x = graphs.ExternalEvent(limit=0.05), torch.zeros(3)
    shared, apart = graphs.CapturedGraph(), graphs.CapturedGraph()
    with graphs.capture(shared):
        event.wait()
        y = x + 1
        event.wait()
        y = y + 1
    with graphs.capture(apart):
        event.wait()
        event.reset()
        y = x + 1
        event.wait()
        y = y + 1
    event.record()
    shared.replay()
    event.record()
    with pytest.raises(RuntimeError, match="aten::add"):
        apart.replay()
    event.reset()
    event.record()
    event.record()
    apart.replay()
    assert event.ahead == 0


@pytest.mark.parametrize("device", DEVICES)
def test_torch_npus_order_of_update_and_record(device: str) -> None:
    """The update before the replay, with its record, as its tests do it."""
    stream = torch.accelerator.current_stream()
    update_stream = torch.Stream("npu")
    event, x = torch.npu.ExternalEvent(), torch.ones(3, device=device)
    out, graph = torch.zeros(3, device=device), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        event.wait(stream)
        event.reset(stream)
        torch.npu.graph_task_group_begin(stream)
        torch.add(x, x, alpha=1, out=out)
        handle = torch.npu.graph_task_group_end(stream)
    for alpha in range(2, 6):
        with update_stream:
            torch.npu.graph_task_update_begin(update_stream, handle)
            torch.add(x, x, alpha=alpha, out=out)
            torch.npu.graph_task_update_end(update_stream)
            event.record(update_stream)
        graph.replay()
        assert out.tolist() == [1 + alpha] * 3


def test_a_limit_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (0, -1, 1e10, float("nan")):
        with pytest.raises(ValueError, match="limit is above 0"):
            graphs.ExternalEvent(limit=limit)
    monkeypatch.setenv("BRINGUP_WAIT_TIMEOUT", "0.03")
    with pytest.raises(RuntimeError, match=r"event was not recorded within 0.03 s, and the host"):
        graphs.ExternalEvent().wait()


@pytest.fixture(autouse=True)
def _nothing_is_left_over() -> Iterator[None]:
    yield
    torch.npu.synchronize()
