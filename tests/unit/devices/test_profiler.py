"""torch's profilers on a device: what the driver ran, with times that can be true."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from bringup import jit, ops

SOURCE = """
#include "bringup/kernel.h"
int32_t run(void** args, int32_t n, const bringup_ctx* ctx) {
  const DLTensor* x = args[0];
  const DLTensor* y = args[n - 1];
  const float* from = x->data;
  float* to = y->data;
  for (int64_t i = 0; i < x->shape[0]; ++i) {
    float sum = 0;
    for (int64_t k = 0; k < 100; ++k) sum += from[i] * k;
    to[i] = sum;
  }
  return 0;
}
"""
BUSY = """
#define _POSIX_C_SOURCE 199309L
#include <time.h>
#include "bringup/kernel.h"
int32_t run(void** args, int32_t n, const bringup_ctx* ctx) {
  struct timespec begin, now;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  do {
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while ((now.tv_sec - begin.tv_sec) * 1000000000L + now.tv_nsec - begin.tv_nsec < 20000000);
  return 0;
}
"""
LOSING = """
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from bringup import devices
devices.load_driver("sim")
x = torch.zeros(4, device="npu")
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as profiler:
    for _ in range(8):
        x.fill_(1)
    torch.npu.synchronize()
print(len([e for e in profiler.events() if e.device_type == DeviceType.PrivateUse1]))
"""
BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
PROFILERS: dict[str, Callable[[], torch.autograd.profiler.profile]] = {
    "legacy": lambda: torch.autograd.profiler.profile(use_device="npu"),
    "legacy with kineto": lambda: torch.autograd.profiler.profile(
        use_device="npu", use_kineto=True
    ),
    "torch.profiler": lambda: torch.profiler.profile(activities=BOTH),
}


@pytest.fixture(scope="module")
def work() -> Callable[[torch.Tensor], torch.Tensor]:
    return ops.kernel_op(
        "test_profiler::work(Tensor x) -> Tensor",
        source=jit.Source(text=SOURCE, name="work.c"),
        outputs=ops.empty_like("x"),
    )


@pytest.fixture
def x(work: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    x = torch.ones(50_000, device="npu")
    work(x)  # compiled before anybody looks at the time
    torch.npu.synchronize()
    return x


def events_of(profile: object) -> list[torch.autograd.profiler_util.FunctionEvent]:
    return profile.events() if hasattr(profile, "events") else profile.function_events


def rows(profile: object) -> list[torch.autograd.profiler_util.FunctionEvent]:
    return [e for e in events_of(profile) if e.device_type == DeviceType.PrivateUse1]


@pytest.mark.parametrize("kind", PROFILERS)
def test_times_are_never_negative_and_no_longer_than_the_run(
    kind: str, x: torch.Tensor, work: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    with PROFILERS[kind]() as profile:
        for _ in range(20):
            work(x).relu().cpu()
            torch.mm(x[:64].reshape(8, 8), x[:64].reshape(8, 8))
        torch.npu.synchronize()
    events = events_of(profile)
    assert {"aten::mm", "aten::relu", "test_profiler::work"} <= {event.name for event in events}
    run = max(event.time_range.end for event in events if event.device_type == DeviceType.CPU)
    for event in events:
        assert 0 <= event.time_range.start <= event.time_range.end, event
        assert 0 <= event.cpu_time_total <= run, event
        assert 0 <= event.self_device_time_total <= event.device_time_total, event
    told = next(row for row in profile.key_averages() if row.key == "test_profiler::work")
    assert told.count == 20
    assert 0 < told.device_time_total <= 2 * run  # its own row and its operator's
    assert "test_profiler::work" in profile.key_averages().table(sort_by="self_cpu_time_total")


@pytest.mark.parametrize("kind", PROFILERS)
def test_the_profiler_prints_no_backtraces(
    kind: str, x: torch.Tensor, capfd: pytest.CaptureFixture[str]
) -> None:
    with PROFILERS[kind]() as profile:
        (x + 1).cpu()
    events_of(profile)
    told = capfd.readouterr().err
    assert "Exception" not in told
    assert "frame #" not in told


def test_a_kernel_is_a_row_of_its_device_and_stream_linked_to_its_operator(
    x: torch.Tensor, work: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    other = torch.ones(1000, device="npu:1")
    with torch.profiler.profile(activities=BOTH) as profile:
        work(x)
        with torch.npu.Stream():
            work(x)
        work(other)
        torch.npu.synchronize()
        torch.npu.synchronize(1)
    found = [row for row in rows(profile) if row.name == "test_profiler::work"]
    # In the order of the calls: streams may begin their work in another one.
    found.sort(key=lambda row: (row.device_index, row.device_resource_id))
    assert [(row.device_index, row.device_resource_id) for row in found] == [(0, 0), (0, 1), (1, 0)]
    callers = [
        event
        for event in profile.events()
        if event.device_type == DeviceType.CPU and event.name == "test_profiler::work"
    ]
    assert [row.linked_correlation_id for row in found] == [event.id for event in callers]
    for row, caller in zip(found, callers, strict=True):
        assert [kernel.name for kernel in caller.kernels] == ["test_profiler::work"]
        assert caller.device_time_total == pytest.approx(row.time_range.elapsed_us(), abs=1)
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kernels = [e for e in trace if e.get("cat") == "kernel"]
    assert sorted((e["name"], e["pid"], e["tid"]) for e in kernels) == [
        ("test_profiler::work", 0, 0),
        ("test_profiler::work", 0, 1),
        ("test_profiler::work", 1, 0),
    ]


@pytest.fixture(scope="module")
def busy() -> Callable[[torch.Tensor], torch.Tensor]:
    """A kernel that keeps its stream busy for 20 ms."""
    return ops.kernel_op(
        "test_profiler::busy(Tensor x) -> Tensor",
        source=jit.Source(text=BUSY, name="busy.c"),
        outputs=ops.empty_like("x"),
    )


def test_a_row_is_as_long_as_the_device_worked_though_the_call_returned_at_once(
    x: torch.Tensor, busy: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    busy(x)  # compiled
    torch.npu.synchronize()
    with torch.profiler.profile(activities=BOTH) as profile:
        busy(x)
        with torch.npu.Stream():
            busy(x)
        x.zero_()  # in the first stream, behind 20 ms of work
        torch.npu.synchronize()
    found = rows(profile)
    kernels = [row for row in found if row.name == "test_profiler::busy"]
    assert len(kernels) == 2
    assert all(row.time_range.elapsed_us() >= 20_000 for row in kernels)
    (fill,) = [row for row in found if row.name == "Memset"]
    first = next(row for row in kernels if row.device_resource_id == 0)
    assert fill.time_range.start >= first.time_range.end  # without the time that it waited
    callers = {e.id: e for e in profile.events() if e.device_type == DeviceType.CPU}
    assert {callers[row.linked_correlation_id].name for row in kernels} == {"test_profiler::busy"}
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [e["args"]["bytes"] for e in trace if e.get("cat") == "gpu_memset"] == [x.nbytes]


def test_rows_of_threads_that_share_a_stream_keep_their_own_operators(
    x: torch.Tensor, work: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    def fill_and_work() -> None:
        for _ in range(50):
            work(x)
            torch.zeros(16, device="npu")

    with torch.profiler.profile(activities=BOTH) as profile:
        threads = [threading.Thread(target=fill_and_work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.npu.synchronize()
    found = rows(profile)
    assert sum(row.name == "test_profiler::work" for row in found) == 200
    assert sum(row.name == "Memset" for row in found) == 200


def test_records_that_the_device_had_no_room_for_are_told(fresh_python: Callable[..., str]) -> None:
    code = "import os; os.dup2(1, 2)" + LOSING
    said = fresh_python(code, BRINGUP_SIM_RECORDS="3")
    assert "profiler: device 0 lost 5 records, for which it had no room" in said
    assert said.splitlines()[-1] == "3"


def test_a_driver_without_records_has_rows_timed_by_events(
    build_driver: Callable[..., Path], fresh_python: Callable[..., str]
) -> None:
    code = """
import sys
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from bringup import devices
devices.load_driver(sys.argv[1])
host = torch.ones(1000)
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as profiler:
    host.to("minimal")
print([e.name for e in profiler.events() if e.device_type == DeviceType.PrivateUse1])
"""
    assert fresh_python(code, str(build_driver())).splitlines()[-1] == "['Memcpy HtoD']"


def test_copies_are_rows_with_their_direction_and_size(x: torch.Tensor, tmp_path: Path) -> None:
    host = torch.ones(50_000).pin_memory()
    with torch.profiler.profile(activities=BOTH) as profile:
        y = host.to("npu", non_blocking=True)
        y.to("npu:1")
        y.to("cpu", non_blocking=True)
        torch.npu.synchronize()
    assert [row.name for row in rows(profile)] == ["Memcpy HtoD", "Memcpy DtoD", "Memcpy DtoH"]
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [e["args"]["bytes"] for e in trace if e.get("cat") == "gpu_memcpy"] == [200_000] * 3


def test_what_the_fallback_computes_on_the_host_has_no_row_of_the_device(x: torch.Tensor) -> None:
    with torch.profiler.profile(activities=BOTH) as profile:
        torch.relu(x).add_(1)
        torch.npu.synchronize()
    assert rows(profile) == []
    assert "aten::relu" in {event.name for event in profile.events()}


def test_without_the_device_activity_there_are_no_rows(
    x: torch.Tensor, work: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profile:
        work(x)
        torch.npu.synchronize()
    assert rows(profile) == []


def test_a_second_profile_has_its_own_rows(
    x: torch.Tensor, work: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    for count in (3, 1):
        with torch.profiler.profile(activities=BOTH) as profile:
            for _ in range(count):
                work(x)
            torch.npu.synchronize()
        assert len(rows(profile)) == count


def test_work_of_another_thread_is_seen(
    x: torch.Tensor, work: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    class Work(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):  # in autograd's thread of the device
            return work(grad)

    leaf = x.clone().requires_grad_()
    with torch.profiler.profile(activities=BOTH) as profile:
        Work.apply(leaf).backward(x)
        torch.npu.synchronize()
    assert "test_profiler::work" in {row.name for row in rows(profile)}


def test_a_failing_kernel_is_raised_as_without_a_profiler(x: torch.Tensor) -> None:
    fail = ops.kernel_op(
        "test_profiler::fail(Tensor x) -> Tensor",
        source=jit.Source(
            text='#include "bringup/kernel.h"\n'
            "int32_t run(void** args, int32_t n, const bringup_ctx* ctx) { return 7; }",
            name="fail.c",
        ),
        outputs=ops.empty_like("x"),
    )
    profile = torch.profiler.profile(activities=BOTH)
    profile.start()
    fail(x)
    with pytest.raises(RuntimeError, match="test_profiler::fail"):
        profile.stop()  # torch synchronises
    profile.stop()
    torch.npu.synchronize()  # raised once


def test_a_captured_graph_is_one_row(
    x: torch.Tensor, work: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    from bringup import graphs

    g = graphs.CapturedGraph()
    with graphs.capture(g):
        work(work(x))
    g.replay()
    torch.npu.synchronize()
    with torch.profiler.profile(activities=BOTH) as profile:
        g.replay()
        torch.npu.synchronize()
    assert [row.name for row in rows(profile)] == ["captured graph"]


def test_memory_of_the_device_is_told_beside_that_of_the_host() -> None:
    before = torch.npu.memory_allocated()
    with torch.profiler.profile(activities=BOTH, profile_memory=True) as profile:
        kept = torch.empty(1 << 20, dtype=torch.uint8, device="npu")
        taken = torch.npu.memory_allocated() - before
        torch.empty(1 << 20, dtype=torch.uint8, device="npu")  # ends at once
    told = {row.key: row for row in profile.key_averages()}
    assert taken >= kept.nbytes
    assert told["aten::empty"].count == 2
    assert told["aten::empty"].device_memory_usage == 2 * taken
    assert told["[memory]"].device_memory_usage == -taken
