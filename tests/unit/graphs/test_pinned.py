"""Pinned memory that a capture allocates: the anchor's six rows, without a pool of its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bringup import devices, graphs


@pytest.fixture(autouse=True)
def driver() -> None:
    devices.load_driver("sim")


def staged(source: Tensor, sizes: int = 1) -> tuple[graphs.CapturedGraph, Tensor]:
    """A copy to the device by way of pinned memory that the capture allocates."""
    graph, total = graphs.CapturedGraph(), None
    with torch.no_grad(), graphs.capture(graph):
        for _ in range(sizes):
            pinned = torch.empty(source.shape, pin_memory=True)
            assert pinned.is_pinned()
            pinned.copy_(source)
            on_device = pinned.to("npu", non_blocking=True)
            del pinned
            total = on_device if total is None else total + on_device
    assert total is not None
    return graph, total


def test_a_replay_copies_what_is_there_then() -> None:
    source = torch.arange(1000.0)
    graph, result = staged(source)
    for value in (3.0, 5.0):
        source.fill_(value)
        graph.replay()
        assert result.cpu().eq(value).all()


def test_nobody_else_gets_its_pinned_memory() -> None:
    source = torch.arange(1000.0)
    graph, result = staged(source)
    others = [torch.full((1000,), -1.0).pin_memory() for _ in range(50)]
    graph.replay()
    assert result.cpu().equal(source)
    assert all(other.eq(-1).all() for other in others)


def test_several_pinned_tensors_of_one_capture_keep_apart() -> None:
    source = torch.arange(100.0)
    graph, result = staged(source, sizes=5)
    source.mul_(2)
    graph.replay()
    assert result.cpu().equal(source * 5)


def test_two_graphs_keep_apart() -> None:
    sources = [torch.full((100,), float(i)) for i in range(2)]
    made = [staged(source) for source in sources]
    for order in ((0, 1), (1, 0), (0, 0, 1)):
        for i in order:
            sources[i].add_(10)
            made[i][0].replay()
        for source, (_, result) in zip(sources, made, strict=True):
            assert result.cpu().equal(source)


def test_reset_gives_the_pinned_memory_back() -> None:
    graph, kept = graphs.CapturedGraph(), []
    with torch.no_grad(), graphs.capture(graph):
        kept.append(torch.zeros(123_457, pin_memory=True))
        kept.append(kept[0].to("npu", non_blocking=True))
    address = kept[0].data_ptr()
    kept.clear()
    taken = [torch.empty(123_457, pin_memory=True) for _ in range(4)]
    assert address not in {x.data_ptr() for x in taken}
    graph.reset()
    torch.npu.synchronize()
    taken += [torch.empty(123_457, pin_memory=True) for _ in range(4)]
    assert address in {x.data_ptr() for x in taken}


def test_what_the_run_wrote_is_put_back_when_no_copy_reads_it_any_more() -> None:
    source, pinned = torch.arange(1000.0), torch.zeros(1000).pin_memory()
    busy = torch.randn(900, 900, device="npu")
    graph = graphs.CapturedGraph()
    with torch.no_grad(), graphs.capture(graph):
        pinned.copy_(source)
        for _ in range(4):
            busy = busy @ busy
        result = pinned.to("npu", non_blocking=True)  # begins when the products are done
    assert pinned.eq(0).all()
    graph.replay()
    assert result.cpu().equal(source)
