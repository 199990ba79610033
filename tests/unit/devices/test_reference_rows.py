"""Behaviour that PyTorch's reference backend tests and no other file here does: events, streams,
allocations, threads and processes, the profiler's tables (docs/devices/reference-backend.md).
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity

COUNT = 2  # devices of the simulator

# --- events


def test_a_new_event_has_happened_and_gets_its_identity_when_recorded() -> None:
    event = torch.Event("npu")
    assert event.event_id == 0
    assert event.query()
    event.synchronize()
    event.record()
    first = event.event_id
    assert first != 0
    event.synchronize()
    assert event.query()
    assert event.device.type == "npu"


def test_an_event_belongs_to_the_device_of_its_stream() -> None:
    with torch.npu.device(1):
        event = torch.npu.current_stream().record_event()
    assert event.device == torch.device("npu", 1)
    event.wait(torch.npu.current_stream())
    torch.npu.synchronize()


# --- streams


def test_streams_are_compared_by_what_they_are_and_print_it() -> None:
    stream, other = torch.Stream("npu"), torch.Stream("npu:1")
    same = torch.Stream(stream_id=stream.stream_id, device_index=0, device_type=stream.device_type)
    assert stream == same
    assert hash(stream) == hash(same)
    assert stream != other
    assert "npu" in repr(stream)
    assert other.device == torch.device("npu:1")


def test_nested_and_failed_contexts_restore_the_stream() -> None:
    default = torch.npu.current_stream()
    outer, inner = torch.npu.Stream(), torch.npu.Stream()

    def fail_in(stream: torch.Stream) -> None:
        with torch.npu.stream(stream):
            assert torch.npu.current_stream() == stream
            raise ValueError("on purpose")

    with torch.npu.stream(outer):
        with pytest.raises(ValueError, match="on purpose"):
            fail_in(inner)
        assert torch.npu.current_stream() == outer
    assert torch.npu.current_stream() == default


def test_a_stream_waits_for_another() -> None:
    first, second = torch.npu.Stream(), torch.npu.Stream()
    source = torch.arange(1 << 20).pin_memory()
    with first:
        there = source.to("npu", non_blocking=True)
    second.wait_stream(first)
    with second:
        doubled = there + there
    second.synchronize()
    assert doubled.cpu().equal(source * 2)


# --- allocations


@pytest.mark.parametrize("size", [(), (0,), (1,), (7, 3), (1 << 20,)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float64, torch.complex64])
def test_memory_of_any_size_is_taken_and_holds_what_was_written(
    size: tuple[int, ...], dtype: torch.dtype
) -> None:
    there = torch.empty(size, dtype=dtype, device="npu")
    there.fill_(3)
    assert there.cpu().equal(torch.full(size, 3, dtype=dtype))


def test_views_and_writes_in_place_keep_their_memory() -> None:
    x = torch.zeros(4, 6, device="npu")
    address = x.data_ptr()
    assert x.view(6, 4).data_ptr() == x.t().data_ptr() == x[0].data_ptr() == address
    assert x[1:].data_ptr() == address + x.stride(0) * x.element_size()
    x.add_(1).mul_(2).clamp_(max=1)
    assert x.data_ptr() == address
    assert x.sum().item() == 24


def test_channels_last_and_other_layouts_are_allocated_as_asked_for() -> None:
    x = torch.empty(2, 3, 4, 5, device="npu", memory_format=torch.channels_last)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert x.stride() == (60, 1, 15, 3)
    assert torch.empty_like(x).stride() == x.stride()
    assert x.contiguous().stride() == (60, 20, 5, 1)
    assert torch.empty_strided((2, 3), (1, 4), device="npu").stride() == (1, 4)


def test_memory_that_is_let_go_in_many_ways_does_not_pile_up() -> None:
    def use() -> None:
        x = torch.randn(1000, device="npu", requires_grad=True)
        y = torch.cat([x, x.detach().to("npu:1").to("npu:0")])
        (y.view(2, -1)[0] * 2).sum().backward()
        y.cpu().pin_memory().to("npu", non_blocking=True)
        with pytest.raises(RuntimeError):
            torch.mm(x, x)

    use()
    gc.collect()  # what cycles of earlier tests hold
    torch.npu.synchronize()
    before = [torch.npu.memory_allocated(d) for d in range(COUNT)]
    held = [torch.npu.memory_reserved(d) for d in range(COUNT)]
    for _ in range(100):
        use()
    torch.npu.synchronize()
    assert [torch.npu.memory_allocated(d) for d in range(COUNT)] == before
    for device in range(COUNT):  # blocks come back
        assert torch.npu.memory_reserved(device) <= held[device] + (4 << 20)


# --- devices


def test_each_thread_has_its_own_current_device() -> None:
    wrong: list[str] = []

    def work(device: int) -> None:
        torch.npu.set_device(device)
        for _ in range(50):
            x = torch.ones(8, device="npu") * device
            if x.device.index != device or x.sum().item() != 8 * device:
                wrong.append(f"{x.device} in the thread of {device}")

    threads = [threading.Thread(target=work, args=(i % COUNT,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert torch.npu.current_device() == 0


def test_an_error_leaves_device_and_stream_as_they_were() -> None:
    stream = torch.npu.Stream(device=1)
    with torch.npu.device(1), torch.npu.stream(stream):
        with pytest.raises(RuntimeError, match="no device"):
            torch.npu.set_device(COUNT)
        with pytest.raises(RuntimeError):
            torch.mm(torch.ones(2, 3, device="npu"), torch.ones(2, 3, device="npu"))
        assert torch.npu.current_device() == 1
        assert torch.npu.current_stream() == stream
        assert torch.ones(2, device="npu").sum().item() == 2
    assert torch.npu.current_device() == 0


def in_another_process(answers: multiprocessing.SimpleQueue[float]) -> None:
    from bringup import devices

    devices.load_driver("sim")
    answers.put(torch.ones(3, device="npu:1").sum().item())


def test_a_spawned_process_has_the_device() -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    process = context.Process(target=in_another_process, args=(answers,))
    process.start()
    process.join(120)
    assert process.exitcode == 0
    assert answers.get() == 3


def test_a_device_can_have_every_dtype_that_torch_computes_with() -> None:
    has = torch.accelerator.get_device_capability()["supported_dtypes"]
    computed = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
    computed |= {torch.float16, torch.bfloat16, torch.float32, torch.float64}
    computed |= {torch.complex32, torch.complex64, torch.complex128}
    assert computed <= set(has)


# --- the profiler's tables


@pytest.fixture
def profiled() -> torch.profiler.profile:
    x = torch.ones(64, 64, device="npu", requires_grad=True)
    activities = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        with torch.profiler.record_function("outer"), torch.profiler.record_function("inner"):
            y = x @ x
        y.relu().sum().backward()
        torch.npu.synchronize()
    return profile


def test_ranges_nest_and_hold_their_operators(profiled: torch.profiler.profile) -> None:
    events = {event.name: event for event in reversed(profiled.events())}
    parents = []
    event = events["aten::mm"]  # the first, of the forward
    while event is not None:
        parents.append(event.name)
        event = event.cpu_parent
    assert parents[-2:] == ["inner", "outer"]
    assert events["outer"].cpu_time_total >= events["inner"].cpu_time_total > 0


def test_rows_have_shapes_and_the_backward_is_there(profiled: torch.profiler.profile) -> None:
    grouped = profiled.key_averages(group_by_input_shape=True)
    products = [row for row in grouped if row.key == "aten::mm"]
    assert [[64, 64], [64, 64]] in [row.input_shapes[:2] for row in products]
    names = {event.name for event in profiled.events()}
    assert any("MmBackward0" in name for name in names)
    assert sum(row.count for row in products) == 3  # forward, and two in the backward


def test_tables_are_sorted_limited_and_name_the_device(profiled: torch.profiler.profile) -> None:
    table = profiled.key_averages().table(sort_by="cpu_time_total", row_limit=3)
    rows = [line for line in table.splitlines() if line.startswith("  ")]
    assert 3 <= len(rows) <= 4  # and the heading
    longest = max(profiled.key_averages(), key=lambda row: row.cpu_time_total)
    assert longest.key[:40] in table
    assert len(profiled.key_averages().table(row_limit=-1)) > len(table)


def test_a_chrome_trace_is_json_with_whole_events(
    profiled: torch.profiler.profile, tmp_path: Path
) -> None:
    profiled.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    whole = [event for event in trace if event.get("ph") == "X"]
    names = {event["name"] for event in whole}
    assert {"aten::mm", "outer", "inner"} <= names
    assert all(event["dur"] >= 0 for event in whole)


def test_a_schedule_profiles_the_steps_that_it_names() -> None:
    seen: list[int] = []
    x = torch.ones(8, device="npu")
    with torch.profiler.profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1],
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda p: seen.append(sum(e.name == "aten::relu" for e in p.events())),
    ) as profile:
        for _ in range(6):
            x.relu()
            profile.step()
    assert seen == [2]


# --- collectives


def test_a_collective_is_refused_by_the_name_of_the_device(
    fresh_python: Callable[..., str], tmp_path: Path
) -> None:
    code = """
import sys, torch, torch.distributed as dist
from bringup import devices
devices.load_driver("sim")
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
x = torch.ones(2, device="npu")
try:
    dist.all_reduce(x)
except RuntimeError as error:
    print("npu" in str(error), x.tolist())
host = torch.ones(2)
dist.all_reduce(host)
print(host.tolist())
dist.destroy_process_group()
"""
    told = fresh_python(code, str(tmp_path / "group"))
    assert told.splitlines() == ["True [1.0, 1.0]", "[1.0, 1.0]"]


# --- torch's own way to test devices


def test_torchs_device_type_tests_run_on_the_device(
    fresh_python: Callable[..., str],
) -> None:
    code = """
import unittest, torch
from bringup import devices
devices.load_driver("sim")
from torch.testing._internal.common_device_type import (
    PrivateUse1TestBase, dtypes, instantiate_device_type_tests, onlyCPU, onlyNativeDeviceTypes, ops)
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase

class TestThere(TestCase):
    @dtypes(torch.float32, torch.int64)
    def test_sum(self, device, dtype):
        x = torch.ones(3, device=device, dtype=dtype)
        self.assertEqual(x.device.type, "npu")
        self.assertEqual(x.sum(), torch.tensor(3, dtype=dtype, device=device))

    @onlyCPU
    def test_only_there(self, device):
        self.fail("on cpu only")

    @ops([op for op in op_db if op.name in ("add", "softmax")], allowed_dtypes=[torch.float32])
    def test_samples(self, device, dtype, op):
        for sample in op.sample_inputs(device, dtype, requires_grad=True):
            result = op(sample.input, *sample.args, **sample.kwargs)
            self.assertTrue(result.is_npu)

instantiate_device_type_tests(TestThere, globals(), only_for="npu")
made = TestTherePRIVATEUSE1 if "TestTherePRIVATEUSE1" in globals() else TestThereNPU
assert issubclass(made, PrivateUse1TestBase)
suite = unittest.defaultTestLoader.loadTestsFromTestCase(made)
result = unittest.TestResult()
suite.run(result)
assert result.wasSuccessful(), result.failures + result.errors
print(made.primary_device, result.testsRun > 4, len(result.skipped))
"""
    told = fresh_python("import warnings; warnings.simplefilter('ignore')\n" + code)
    assert told.splitlines()[-1] == "npu:0 True 1"
