"""The allocator against a plain model: random programs of tensors, streams and record_stream."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

MIB = 1 << 20

Segment = dict[str, Any]


def segments() -> list[Segment]:
    return [segment for segment in torch.npu.memory_snapshot() if segment["device"] == 0]


def stat(key: str) -> int:
    return int(torch.npu.memory_stats()[f"{key}.current"])


def segments_and_statistics() -> tuple[list[Segment], dict[str, Any]]:
    """Both of one moment: the garbage collector may free a tensor of an earlier test in between."""
    for _ in range(100):
        before = torch.npu.memory_stats()
        found = segments()
        if torch.npu.memory_stats() == before:
            return found, before
    raise AssertionError("the statistics changed a hundred times while the segments were read")


def check_snapshot(live: list[torch.Tensor]) -> None:
    """Blocks cover their segments, tensors have blocks of their own, statistics are the sums."""
    found, statistics = segments_and_statistics()

    def current(key: str) -> int:
        return int(statistics[f"{key}.current"])

    blocks = {}
    for segment in found:
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address
            address += block["size"]
            if block["state"] == "active_allocated":
                blocks[block["address"]] = block["size"]
        assert address == segment["address"] + segment["total_size"]
    for tensor in live:
        assert blocks[tensor.data_ptr()] >= tensor.nbytes
    assert len({tensor.data_ptr() for tensor in live}) == len(live)
    assert current("segment.all") == len(found)
    for key, field in (
        ("reserved_bytes", "total_size"),
        ("allocated_bytes", "allocated_size"),
        ("active_bytes", "active_size"),
    ):
        for pool in ("small", "large"):
            of_pool = [s[field] for s in found if s["segment_type"] == pool]
            assert current(f"{key}.{pool}_pool") == sum(of_pool), (key, pool)
        assert current(f"{key}.all") == sum(segment[field] for segment in found)
    free_parts = [
        block["size"]
        for segment in found
        for block in segment["blocks"]
        if block["state"] == "inactive" and len(segment["blocks"]) > 1
    ]
    assert current("inactive_split.all") == len(free_parts)
    assert current("inactive_split_bytes.all") == sum(free_parts)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("new", "new", "free", "record")),
        st.integers(0, 2),  # a stream
        st.one_of(st.integers(1, 4096), st.integers(1, 6 * MIB)),  # bytes, or which tensor
    ),
    max_size=40,
)


@settings(max_examples=20, deadline=None)
@given(steps=STEPS)
def test_random_programs_get_memory_of_their_own(steps: list[tuple[str, int, int]]) -> None:
    streams = [torch.npu.default_stream(), torch.npu.Stream(), torch.npu.Stream()]
    live: list[tuple[torch.Tensor, int]] = []
    for number, (what, stream, size) in enumerate(steps):
        if what == "new":
            with torch.npu.stream(streams[stream]):
                value = number % 251
                live.append((torch.full((size,), value, dtype=torch.uint8, device="npu"), value))
        elif live:
            tensor, value = live[size % len(live)]
            if what == "record":
                tensor.record_stream(streams[stream])
            else:
                torch.npu.synchronize()
                assert bool((tensor.cpu() == value).all())
                del live[size % len(live)], tensor
        check_snapshot([tensor for tensor, _ in live])
    torch.npu.synchronize()
    for tensor, value in live:
        assert bool((tensor.cpu() == value).all())


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(1, 3 * MIB), min_size=1, max_size=12))
def test_freed_memory_serves_the_same_requests_again(sizes: list[int]) -> None:
    def take() -> list[torch.Tensor]:
        return [torch.empty(size, dtype=torch.uint8, device="npu") for size in sizes]

    torch.npu.empty_cache()
    take()
    reserved = torch.npu.memory_reserved()
    for _ in range(3):
        take()
    assert torch.npu.memory_reserved() == reserved


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(1, 2 * MIB), min_size=1, max_size=8), data=st.data())
def test_memory_of_a_pending_stream_is_not_given_away(sizes: list[int], data: Any) -> None:
    side = torch.npu.Stream()
    kept = torch.empty(32 * MIB, dtype=torch.uint8, device="npu")
    blocks = [torch.full((size,), 7, dtype=torch.uint8, device="npu") for size in sizes]
    torch.npu.synchronize()
    copies = []
    with torch.npu.stream(side):
        for _ in range(4):
            kept.clone()
        for block in blocks:
            copies.append(block.clone())
            block.record_stream(side)
    order = data.draw(st.permutations(range(len(blocks))))
    for index in order:
        blocks[index] = torch.zeros(sizes[index], dtype=torch.uint8, device="npu")
    side.synchronize()
    assert all(bool((copy == 7).all()) for copy in copies)


@pytest.mark.usefixtures("settled")
def test_a_large_block_that_is_free_does_not_stay_for_small_requests() -> None:
    torch.npu.empty_cache()
    reserved, allocated = torch.npu.memory_reserved(), torch.npu.memory_allocated()
    del_me = torch.empty(100 * MIB, dtype=torch.uint8, device="npu")
    del del_me
    kept = [torch.empty(MIB + i, dtype=torch.uint8, device="npu") for i in range(50)]
    held = sum(tensor.nbytes for tensor in kept)
    assert torch.npu.memory_reserved() - reserved <= 1.25 * held
    assert torch.npu.memory_allocated() - allocated >= held
    del kept
    torch.npu.empty_cache()


def test_neighbours_that_are_free_serve_one_larger_request() -> None:
    torch.npu.empty_cache()
    parts = [torch.empty(4 * MIB, dtype=torch.uint8, device="npu") for _ in range(5)]
    addresses = [tensor.data_ptr() for tensor in parts]
    assert [b - a for a, b in itertools.pairwise(addresses)] == [4 * MIB] * 4
    reserved = torch.npu.memory_reserved()
    del parts[1:4]
    joined = torch.empty(12 * MIB, dtype=torch.uint8, device="npu")
    assert joined.data_ptr() == addresses[1]
    assert torch.npu.memory_reserved() == reserved


def test_two_threads_keep_what_they_wrote() -> None:
    wrong: list[str] = []

    def work(value: int) -> None:
        with torch.npu.stream(torch.npu.Stream()):
            live: list[torch.Tensor] = []
            for step in range(150):
                size = 1 + (step * 7919 * value) % 300_000
                live.append(torch.full((size,), value, dtype=torch.uint8, device="npu"))
                if len(live) > 6 and not bool((live.pop(step % 6) == value).all()):
                    wrong.append(f"thread {value}, step {step}")

    threads = [threading.Thread(target=work, args=(value,)) for value in (3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    check_snapshot([])


def test_a_block_that_another_stream_uses_is_shown_as_pending() -> None:
    side = torch.npu.Stream()
    block = torch.empty(MIB, dtype=torch.uint8, device="npu")
    address = block.data_ptr()
    with torch.npu.stream(side):
        kept = torch.empty(64 * MIB, dtype=torch.uint8, device="npu")
        for _ in range(8):
            kept.clone()
    block.record_stream(side)
    del block
    states = {b["address"]: b["state"] for s in segments() for b in s["blocks"]}
    assert states[address] == "active_pending_free"
    assert stat("active_bytes.all") >= stat("allocated_bytes.all") + MIB
    side.synchronize()


def test_the_snapshot_is_what_torchs_memory_viewer_reads() -> None:
    from torch.cuda import _memory_viz

    torch.npu.empty_cache()
    kept = torch.empty(3 * MIB, dtype=torch.uint8, device="npu")
    snapshot = torch.npu.memory._snapshot()
    assert {segment["device"] for segment in torch.npu.memory._snapshot(0)["segments"]} == {0}
    assert len(snapshot["device_traces"]) == torch.npu.device_count()
    shown = _memory_viz.segsum(snapshot)
    assert "20.0MiB allocated, 17.0MiB" in shown
    del kept


def test_out_of_memory_tells_what_is_live_reserved_and_free() -> None:
    torch.npu.empty_cache()
    kept = torch.empty(3 * MIB, dtype=torch.uint8, device="npu")
    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.empty(1 << 45, dtype=torch.uint8, device="npu")
    text = str(raised.value)
    assert "Tried to allocate 32768.00 GiB" in text
    free = [b["size"] for s in segments() for b in s["blocks"] if b["state"] == "inactive"]
    assert text.endswith(f"The largest free block has {max(free) / MIB:.2f} MiB.")
    del kept


def test_a_size_that_no_address_can_have_is_out_of_memory() -> None:
    with pytest.raises((torch.OutOfMemoryError, RuntimeError)):
        torch.empty((1 << 62,), dtype=torch.float16, device="npu")
    assert torch.ones(2, device="npu").sum().item() == 2


@pytest.mark.parametrize(
    ("memory", "most"), [("MEMORY=1", 64), ("MEMORY=1024", 128)], ids=["floor", "eighth"]
)
def test_memory_behind_events_that_never_end_is_bounded(
    memory: str, most: int, build_driver: Callable[..., Any], fresh_python: Callable[..., str]
) -> None:
    code = """
import sys, torch
from bringup import devices
devices.load_driver(sys.argv[1])
name = torch._C._get_privateuse1_backend_name()
module = getattr(torch, name)
side = module.Stream()
try:
    for _ in range(200):
        x = torch.empty(8 << 20, dtype=torch.uint8, device=name)
        x.record_stream(side)
        del x
except RuntimeError as error:
    print("record_stream" in str(error), "BRINGUP_WAIT_TIMEOUT" in str(error))
    print(str(error).rpartition("at most ")[2])
print(module.memory_stats()["active_bytes.all.current"] >> 20)
"""
    driver = str(build_driver("LIE_EVENT", memory))
    limits = {"BRINGUP_WAIT_TIMEOUT": "0.2", "BRINGUP_DRIVER_PROBE": "0"}
    said = fresh_python(code, driver, **limits)
    assert said.splitlines() == ["True True", f"{most}.00 MiB may wait", str(most + 8)]
