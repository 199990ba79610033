"""The order of kernels and torch's own work on streams, and their capture in CUDA graphs."""

from __future__ import annotations

import pytest
import torch
from tests.cuda.conftest import Define
from tests.cuda.kernels import SLOW_ADD

from bringup import graphs, ops
from bringup.errors import CaptureError

LONG = 2_000_000  # cycles: about a millisecond


@pytest.fixture
def slow_add(define: Define) -> ops.KernelOperator:
    """`x += value`, after some cycles."""
    return define("slow_add(Tensor(a!) x, float value, int cycles) -> ()", SLOW_ADD)


def test_a_call_returns_before_the_kernel_is_done(slow_add: ops.KernelOperator) -> None:
    x = torch.zeros(1000, device="cuda")
    slow_add(x, 1.0, 0)
    torch.cuda.synchronize()
    slow_add(x, 1.0, 100 * LONG)
    assert not torch.cuda.current_stream().query()
    assert x.unique().tolist() == [2.0]


def test_kernels_and_torchs_operators_keep_the_order_of_their_stream(
    slow_add: ops.KernelOperator,
) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        x = torch.ones(1 << 16, device="cuda")
        for _ in range(50):
            x.mul_(2)
            slow_add(x, -1.0, LONG // 4)
        assert x.unique().tolist() == [1.0]


def test_a_side_stream_runs_beside_a_busy_one_and_an_event_orders_them(
    slow_add: ops.KernelOperator, scale: ops.KernelOperator
) -> None:
    busy, side = torch.cuda.Stream(), torch.cuda.Stream()
    x, y = torch.zeros(1000, device="cuda"), torch.ones(1000, device="cuda")
    scale(y, 1.0)
    torch.cuda.synchronize()
    with torch.cuda.stream(busy):
        slow_add(x, 1.0, 500 * LONG)
        done = busy.record_event()
    with torch.cuda.stream(side):
        apart = scale(y, 5.0)
        side.synchronize()
        assert not done.query()  # the busy stream still works
        side.wait_event(done)
        ordered = scale(x, 3.0)
    assert apart.unique().tolist() == [5.0]
    side.synchronize()
    assert ordered.unique().tolist() == [3.0]


def test_memory_that_another_stream_still_reads_is_kept_by_record_stream(
    slow_add: ops.KernelOperator, scale: ops.KernelOperator
) -> None:
    side = torch.cuda.Stream()
    total = torch.zeros(1 << 20, device="cuda")
    x = scale(torch.ones(1 << 20, device="cuda"), 7.0)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        slow_add(total, 0.0, 50 * LONG)
        total.add_(x)
        x.record_stream(side)
    del x
    for _ in range(20):
        scale(torch.zeros(1 << 20, device="cuda"), 1.0)  # would take the memory of x
    torch.cuda.synchronize()
    assert total.unique().tolist() == [7.0]


def test_a_cuda_graph_captures_and_replays_the_kernel(
    scale: ops.KernelOperator, slow_add: ops.KernelOperator
) -> None:
    x = torch.ones(1000, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # compiles and loads, which no capture allows
        slow_add(scale(x, 2.0), 0.0, 0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = scale(x, 3.0)
        slow_add(y, 1.0, 0)
        z = y + scale(y, 2.0)
    for value in (1.0, 5.0, -2.0):
        x.fill_(value)
        graph.replay()
        assert z.unique().tolist() == [3 * (3 * value + 1)]


def test_graphs_capture_refuses_tensors_of_a_gpu(scale: ops.KernelOperator) -> None:
    x = torch.ones(8, device="cuda")
    scale(x, 2.0)
    with pytest.raises(CaptureError), graphs.capture(graphs.CapturedGraph()):
        scale(x, 2.0)
    assert scale(x, 2.0).tolist() == [2.0] * 8
