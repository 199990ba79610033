"""Runs on a device come one after the other: in whatever streams, over one buffer, and with the
host where inputs or results are in its memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bringup import devices, graphs

COUNT = 16
SIZE = 1 << 18


@pytest.fixture(autouse=True)
def _npu() -> None:
    devices.load_driver("sim")


def captured(run: Callable[..., Tensor], *inputs: Tensor) -> graphs.CapturedGraph:
    graph = graphs.CapturedGraph()
    with torch.no_grad(), graphs.capture(graph, inputs=inputs):
        graph.outputs = run(*inputs)
    return graph


def plus_twenty(x: Tensor) -> Tensor:
    """Takes the device longer than it takes the host to ask for it."""
    for _ in range(20):
        x = x + 1
    return x


def full(value: float, device: str = "npu") -> Tensor:
    return torch.full((SIZE,), float(value), device=device)


def assert_each_its_own(results: list[Tensor]) -> None:
    torch.npu.synchronize()
    for value, result in enumerate(results):
        assert result.cpu().unique().tolist() == [value + 20.0]


def test_graphs_over_one_buffer_run_in_order_in_two_streams() -> None:
    buffer = torch.zeros(SIZE, device="npu")
    made = [captured(plus_twenty, buffer), captured(lambda x: plus_twenty(x.neg().neg()), buffer)]
    streams = [torch.Stream(device="npu") for _ in range(2)]
    given = [full(value) for value in range(COUNT)]
    torch.npu.synchronize()
    results = []
    for value in range(COUNT):
        with streams[value % 2]:
            results.append(made[value % 2].run(given[value]))
    assert_each_its_own(results)


def test_result_that_is_the_input_of_another_graph_is_read_in_order() -> None:
    x, between = torch.zeros(SIZE, device="npu"), torch.zeros(SIZE, device="npu")
    first = captured(lambda x: between.copy_(plus_twenty(x)), x)
    second = captured(plus_twenty, between)
    streams = [torch.Stream(device="npu") for _ in range(2)]
    given = full(5)
    torch.npu.synchronize()
    for _ in range(COUNT):
        with streams[0]:
            first.run(given)
        with streams[1]:
            result = second.run(between)
        torch.npu.synchronize()
        assert result.cpu().unique().tolist() == [45.0]


def test_graphs_over_one_buffer_run_in_order_in_threads_with_streams_of_their_own() -> None:
    buffer = torch.zeros(SIZE, device="npu")
    made = [captured(plus_twenty, buffer) for _ in range(3)]
    results: dict[int, list[Tensor]] = {}

    def serve(graph: graphs.CapturedGraph, number: int) -> None:
        with torch.no_grad(), torch.Stream(device="npu"):
            results[number] = [graph.run(full(value)) for value in range(COUNT)]

    threads = [threading.Thread(target=serve, args=(g, i)) for i, g in enumerate(made)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    for own in results.values():
        assert_each_its_own(own)


@pytest.mark.parametrize("pinned", [False, True], ids=["pageable", "pinned"])
def test_input_in_host_memory_is_written_when_the_run_before_has_read_it(pinned: bool) -> None:
    x = torch.zeros(SIZE, pin_memory=pinned)
    graph = captured(lambda x: plus_twenty(x.to("npu", non_blocking=True)), x)
    assert_each_its_own([graph.run(full(value, "cpu")) for value in range(COUNT)])


@pytest.mark.parametrize("pinned", [False, True], ids=["pageable", "pinned"])
def test_result_in_host_memory_is_read_when_the_run_has_written_it(pinned: bool) -> None:
    x, y = torch.zeros(SIZE, device="npu"), torch.zeros(SIZE, pin_memory=pinned)
    graph = captured(lambda x: y.copy_(plus_twenty(x), non_blocking=True), x)
    assert_each_its_own([graph.run(full(value)) for value in range(COUNT)])


def test_graph_of_the_host_waits_for_the_device_that_reads_its_input() -> None:
    x = torch.zeros(SIZE)
    on_device = captured(lambda x: plus_twenty(x.to("npu", non_blocking=True)), x)
    on_host = captured(lambda x: x * 2, x)
    results = []
    for value in range(COUNT):
        results.append(on_device.run(full(value, "cpu")))
        assert on_host.run(full(-1, "cpu"))[0].item() == -2
    assert_each_its_own(results)


def test_run_that_fails_leaves_the_order_of_the_others() -> None:
    buffer = torch.zeros(SIZE, device="npu")
    good, broken = captured(plus_twenty, buffer), captured(plus_twenty, buffer)
    streams = [torch.Stream(device="npu") for _ in range(2)]
    given = [full(value) for value in range(COUNT)]
    torch.npu.synchronize()
    results = []
    for value in range(COUNT):
        with streams[value % 2]:
            results.append(good.run(given[value]))
            with pytest.raises(Exception, match="no slot"):
                broken.run(full(-1), slots={"missing": 1})
    assert_each_its_own(results)


@pytest.mark.parametrize("how", ["run", "replay"])
def test_host_memory_that_is_no_input_may_be_written_behind_the_call(how: str) -> None:
    x, scale = torch.zeros(SIZE, device="npu"), torch.tensor(2.0)
    graph = captured(lambda x: plus_twenty(x) * scale, x)
    for factor in range(COUNT):
        scale.fill_(factor)
        result = graph.run(full(1)) if how == "run" else (graph.replay(), graph.outputs)[1]
        scale.fill_(-1)
        torch.npu.synchronize()
        assert result.cpu().unique().tolist() == [21.0 * factor if how == "run" else 20.0 * factor]


def test_host_memory_that_a_replay_wrote_may_be_read_behind_it() -> None:
    x, y = torch.zeros(SIZE, device="npu"), torch.zeros(SIZE)
    graph = captured(lambda x: y.copy_(plus_twenty(x)), x)
    y.zero_()
    graph.replay()
    assert y[-1].item() == 20


def test_run_inside_a_run_is_refused_where_it_would_wait_for_another_thread() -> None:
    inside, tried = threading.Event(), threading.Event()
    runs: dict[str, Callable[[Tensor], Tensor]] = {}

    @torch.library.custom_op("bringup_test::run_inside", mutates_args=())
    def run_inside(x: Tensor, name: str) -> Tensor:
        return runs[name](x) if name in runs else x.clone()

    run_inside.register_fake(lambda x, name: torch.empty_like(x))

    def blocked(x: Tensor) -> Tensor:
        inside.set()
        assert tried.wait(60)
        return x + 1

    def stripes(graph: graphs.CapturedGraph, x: Tensor) -> set[int]:
        return {t.untyped_storage().data_ptr() // 64 % 256 for t in (x, graph.outputs)}

    x, *others = (torch.zeros(4) for _ in range(9))
    first = captured(lambda x: run_inside(x, "blocked") * 2, x)
    seconds = [(captured(lambda x: run_inside(x, "first") * 3, other), other) for other in others]
    second = next(g for g, y in seconds if stripes(first, x).isdisjoint(stripes(g, y)))
    runs.update(blocked=blocked, first=first.run)
    results: list[Tensor] = []
    thread = threading.Thread(target=lambda: results.append(first.run(torch.ones(4))))
    thread.start()
    assert inside.wait(60)
    try:
        with pytest.raises(RuntimeError, match="inside an operator of another graph: a run in"):
            second.run(torch.ones(4))
    finally:
        tried.set()
        thread.join()
    assert results[0].tolist() == [4.0] * 4
    assert second.run(torch.ones(4)).tolist() == [12.0] * 4
