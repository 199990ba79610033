"""Streams and events: real order between them, and failures that come out at a synchronisation."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from tests.unit.devices.gate import Gate

HeldWrite = Callable[[torch.Tensor, int], None]


def keep_busy(megabytes: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Queues copies in the current stream; the worker needs much longer than the host to queue."""
    source = torch.empty(megabytes << 18, device="npu")
    target = torch.empty_like(source)
    for _ in range(8):
        target.copy_(source)
    return source, target


def test_work_is_asynchronous_and_synchronize_waits(held_write: HeldWrite, gate: Gate) -> None:
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        held_write(torch.empty(1, device="npu"), gate.address)
        assert not stream.query()
        threading.Timer(0.05, gate.release).start()
        stream.synchronize()
        assert stream.query()


def test_a_stream_waits_for_an_event_of_another(held_write: HeldWrite, gate: Gate) -> None:
    first, second = torch.npu.Stream(), torch.npu.Stream()
    source = torch.arange(16.0).pin_memory()
    value, copied = torch.zeros(16, device="npu"), torch.zeros(16, device="npu")
    torch.npu.synchronize()
    event = torch.npu.Event()
    with torch.npu.stream(first):
        held_write(torch.empty(1, device="npu"), gate.address)
        value.copy_(source, non_blocking=True)
        event.record()
    second.wait_event(event)
    with torch.npu.stream(second):
        copied.copy_(value)
        assert not event.query()
    gate.release()
    second.synchronize()
    assert event.query()
    assert torch.equal(copied.cpu(), torch.arange(16.0))


def test_events_measure_time_between_them() -> None:
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    start.record()
    kept = keep_busy()
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) > 0.5
    del kept


def test_current_stream_is_per_context_and_per_device() -> None:
    default = torch.npu.default_stream()
    assert torch.npu.current_stream() == default
    stream = torch.npu.Stream(priority=-1)
    with torch.npu.stream(stream):
        assert torch.npu.current_stream() == stream
        with torch.npu.stream(None):
            assert torch.npu.current_stream() == stream
    assert torch.npu.current_stream() == default
    with torch.npu.device(1):
        assert torch.npu.current_device() == 1
        assert torch.npu.current_stream().device_index == 1
        assert torch.empty(1, device="npu").device.index == 1
    assert torch.npu.current_device() == 0


def test_copy_between_devices_follows_the_work_of_both() -> None:
    x = torch.arange(1000.0, device="npu:0") + 1
    y = x.to("npu:1")
    assert y.device == torch.device("npu:1")
    assert torch.equal((y * 2).cpu(), (torch.arange(1000.0) + 1) * 2)


def test_non_blocking_copy_from_pinned_memory_survives_its_source() -> None:
    with torch.npu.stream(torch.npu.Stream()) as stream:
        kept = keep_busy()
        source = torch.full((1 << 20,), 3.0).pin_memory()
        there = source.to("npu", non_blocking=True)
        del source
        for value in range(4):  # would reuse the pinned block if it were free
            torch.full((1 << 20,), float(value)).pin_memory()
        stream.synchronize()
        assert bool((there == 3).all())
    del kept


def test_non_blocking_copy_of_part_of_pinned_memory_survives_its_source() -> None:
    with torch.npu.stream(torch.npu.Stream()) as stream:
        kept = keep_busy()
        part = torch.full((1 << 20,), 3.0).pin_memory()[1 << 19 :]
        there = part.to("npu", non_blocking=True)
        del part
        for value in range(4):  # would reuse the pinned block if it were free
            torch.full((1 << 20,), float(value)).pin_memory()
        stream.synchronize()
        assert bool((there == 3).all())
    del kept


def test_non_blocking_copy_of_ordinary_memory_is_over_when_it_returns() -> None:
    with torch.npu.stream(torch.npu.Stream()):
        there = torch.empty(1 << 20, device="npu")
        kept = keep_busy()
        source = torch.full((1 << 20,), 3.0)
        there.copy_(source, non_blocking=True)
        source.zero_()
        assert bool((there == 3).all())
    del kept


def test_block_used_by_another_stream_is_not_reused_before_that_stream_is_done() -> None:
    side = torch.npu.Stream()
    torch.npu.empty_cache()
    block = torch.full((1 << 20,), 5.0, device="npu")
    address = block.data_ptr()
    torch.npu.synchronize()
    with torch.npu.stream(side):
        kept = keep_busy()
        copied = block.clone()
        block.record_stream(side)
    del block
    other = torch.zeros(1 << 20, device="npu")
    assert other.data_ptr() != address
    side.synchronize()
    assert torch.equal(copied.cpu(), torch.full((1 << 20,), 5.0))
    assert torch.empty(1 << 20, device="npu").data_ptr() == address
    del kept


def test_block_is_reused_at_once_in_its_own_stream_only() -> None:
    first = torch.empty(3000, device="npu")
    address = first.data_ptr()
    del first
    with torch.npu.stream(torch.npu.Stream()):
        assert torch.empty(3000, device="npu").data_ptr() != address
    assert torch.empty(3000, device="npu").data_ptr() == address


def test_event_times_need_timing() -> None:
    start, end = torch.npu.Event(), torch.npu.Event()
    start.record()
    end.record()
    torch.npu.synchronize()
    with pytest.raises((ValueError, RuntimeError), match=r"timing"):
        start.elapsed_time(end)
