"""The simulator's faults reach whoever calls torch: which error, and that everything works then.

Every call of whole programs is made to fail in `tests/sweeps/test_faults.py`.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.forked_python import run_forked

from bringup import devices, jit, ops
from bringup.errors import DeviceError, KernelError

faults = devices.sim.faults

ADD_ONE = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<float, 1> x(args[0]), out(args[1]);
  for (int64_t i = 0; i < x.size(0); ++i) out(i) = x(i) + 1;
  return 0;
}
"""


@pytest.fixture(scope="module")
def add_one() -> Iterator[ops.KernelOperator]:
    operator = ops.kernel_op(
        "devices_faults::add_one(Tensor x) -> Tensor",
        source=jit.Source(text=ADD_ONE, name="add_one.cpp"),
        outputs=ops.empty_like("x"),
        kind="device",
    )
    yield operator
    operator.undefine()


@pytest.fixture(autouse=True)
def _everything_works_afterwards() -> Iterator[None]:
    torch.npu.synchronize()
    gc.collect()
    before = torch.npu.memory_allocated()
    yield
    torch.npu.synchronize()
    gc.collect()
    assert torch.npu.memory_allocated() == before
    x = torch.arange(8.0, device="npu", requires_grad=True)
    (x * x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), 2 * torch.arange(8.0))


# --- the interface


def test_what_is_injected_is_counted_and_ends_with_the_block() -> None:
    x = torch.ones(4, device="npu")
    with faults(fail="copy_async", fail_after=1) as injected:
        x.clone()
        assert injected.count == 0
        with pytest.raises(RuntimeError, match="injected failure of copy_async"):
            x.clone()
        assert injected.count == 1
        x.clone()
    x.clone()
    assert injected.count == 1
    assert injected.functions["copy_async"] == devices.sim.FaultCount(calls=3, injected=1)
    assert injected.calls >= 3


def test_a_number_of_none_is_not_the_same_as_no_number() -> None:
    torch.npu.empty_cache()
    with faults(oom_after=0), pytest.raises(torch.OutOfMemoryError):
        torch.empty(123 << 20, dtype=torch.uint8, device="npu")


def test_blocks_within_each_other_count_and_end_for_themselves() -> None:
    x = torch.ones(4, device="npu")
    with faults(fail="copy_async", fail_after=2) as outer:
        x.clone()
        with (
            faults(fail="copy_async") as inner,
            pytest.raises(RuntimeError, match="injected failure"),
        ):
            x.clone()
        assert (outer.count, inner.count) == (0, 1)
        with pytest.raises(RuntimeError, match="injected failure"):
            x.clone()
        assert (outer.count, inner.count) == (1, 1)


def test_a_block_ends_when_an_exception_leaves_it() -> None:
    with pytest.raises(KeyError), faults(fail="any", fail_every=1):
        raise KeyError
    assert torch.ones(2, device="npu").sum().item() == 2


def test_blocks_of_two_threads_may_overlap() -> None:
    begun, end = threading.Event(), threading.Event()

    def hold() -> None:
        with faults(fail="copy_async", fail_every=1):
            begun.set()
            end.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait(60)
    x = torch.ones(4, device="npu")
    with faults(launch_latency_us=1):
        end.set()
        thread.join()
        x.clone()


def test_all_threads_are_concerned() -> None:
    x = torch.ones(4, device="npu")
    raised: list[str] = []

    def copy() -> None:
        try:
            x.clone()
        except RuntimeError as error:
            raised.append(str(error))

    with faults(fail="copy_async"):
        thread = threading.Thread(target=copy)
        thread.start()
        thread.join()
    assert "injected failure" in raised[0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"fail": "lunch"}, "'fail=lunch': 'lunch' is no function of driver.h that can fail"),
        ({"fail_after": 3}, "fail_after means nothing without fail=FUNCTION"),
        ({"oom_after": -1}, "'oom_after=-1': expected a whole number from 0"),
        ({"reorder": "backwards"}, "'reorder=backwards': expected one of eager, random, late"),
        ({"fail": "launch", "operator": "a,b"}, "operator='a,b': expected no comma"),
        ({"fail": "mem_alloc", "fail_async": True}, "mem_alloc does no work in a stream"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(
    arguments: dict[str, object], sentence: str
) -> None:
    with pytest.raises(DeviceError) as raised, faults(**arguments):  # type: ignore[arg-type]
        pass
    assert str(raised.value).startswith("devices.sim.faults: ")
    assert sentence in str(raised.value)


def test_only_the_simulator_breaks_on_demand(
    build_driver: Callable[..., Path], fresh_python: Callable[..., str]
) -> None:
    code = """
import sys
from bringup import devices
from bringup.errors import DeviceError
for load in (False, True):
    if load:
        devices.load_driver(sys.argv[1])
    try:
        with devices.sim.faults(oom_after=1):
            print("believed")
    except DeviceError as error:
        print(error)
"""
    none, other = fresh_python(code, str(build_driver())).splitlines()
    assert "no driver is loaded" in none
    assert "of device 'minimal', is not the simulator" in other


# --- the environment


def test_faults_of_the_environment_hold_from_the_start(fresh_python: Callable[..., str]) -> None:
    code = """
import torch
from bringup import devices
devices.load_driver("sim")
kept = []
try:
    for _ in range(9):
        kept.append(torch.empty(64 << 20, dtype=torch.uint8, device="npu"))
except torch.OutOfMemoryError as error:
    print(len(kept))
"""
    assert fresh_python(code, BRINGUP_SIM_FAULTS="oom_after=3") == "3"
    assert fresh_python(code + "print('all')", BRINGUP_SIM_FAULTS="") == "all"


def test_a_key_of_the_environment_that_there_is_not_refuses_the_driver(
    fresh_python: Callable[..., str],
) -> None:
    code = """
from bringup import devices
from bringup.errors import DriverError
try:
    devices.load_driver("sim")
except DriverError as error:
    print(error)
"""
    said = fresh_python(code, BRINGUP_SIM_FAULTS="oom_after=3,oom=4")
    assert "BRINGUP_SIM_FAULTS: 'oom=4': expected KEY=VALUE with one of device, oom_after" in said


def test_hidden_dtypes_are_refused_by_the_device(fresh_python: Callable[..., str]) -> None:
    code = """
import torch
from bringup import devices
devices.load_driver("sim")
print(torch.npu.get_device_properties().supports_float64, torch.ones(2, device="npu").sum().item())
try:
    torch.ones(2, device="npu", dtype=torch.float64)
except TypeError as error:
    print(error)
"""
    said = fresh_python(code, BRINGUP_SIM_FAULTS="hidden_dtypes=float64").splitlines()
    assert said[0] == "False 2.0"
    assert "has no tensors of torch.float64" in said[1]


def test_the_devices_have_as_much_memory_as_the_environment_says(
    fresh_python: Callable[..., str],
) -> None:
    code = """
import torch
from bringup import devices
devices.load_driver("sim")
print(torch.npu.mem_get_info()[1], torch.npu.get_device_properties().total_memory)
"""
    assert fresh_python(code, BRINGUP_SIM_FAULTS="memory=64M") == f"{64 << 20} {64 << 20}"


# --- memory


def test_memory_that_is_out_once_is_asked_for_again() -> None:
    torch.npu.empty_cache()
    retries = torch.npu.memory_stats()["num_alloc_retries"]
    with faults(fail="mem_alloc", fail_status="out_of_memory") as injected:
        x = torch.ones(3 << 20, device="npu")
    assert injected.count == 1
    assert torch.npu.memory_stats()["num_alloc_retries"] == retries + 1
    assert x.sum().item() == 3 << 20


def test_memory_that_stays_out_is_torchs_error_and_tensors_survive_it() -> None:
    torch.npu.empty_cache()
    kept = torch.arange(5.0, device="npu")
    ooms = torch.npu.memory_stats()["num_ooms"]
    with faults(oom_after=0):
        with pytest.raises(torch.OutOfMemoryError, match=r"^npu out of memory. Tried to allocate"):
            torch.empty(5 << 20, dtype=torch.uint8, device="npu")
        assert (kept + 1).sum().item() == 15  # from the cache
    assert torch.npu.memory_stats()["num_ooms"] == ooms + 1
    assert torch.equal(kept.cpu(), torch.arange(5.0))


def test_memory_is_out_where_the_device_has_no_more() -> None:
    torch.npu.empty_cache()
    reserved = torch.npu.memory_reserved()
    with faults(memory=reserved + (64 << 20), device=0):
        first = torch.empty(40 << 20, dtype=torch.uint8, device="npu")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(40 << 20, dtype=torch.uint8, device="npu")
        del first
        torch.empty(50 << 20, dtype=torch.uint8, device="npu")  # once the cache was given back
    torch.npu.empty_cache()


def test_pinned_memory_that_cannot_be_had_is_an_error() -> None:
    with (
        faults(fail="host_alloc", fail_status="out_of_memory"),
        pytest.raises(torch.OutOfMemoryError, match="allocating pinned host memory"),
    ):
        torch.empty(77 << 12, pin_memory=True)
    assert torch.empty(77 << 12, pin_memory=True).is_pinned()


@pytest.mark.parametrize("call", ["event_create", "event_record"])
def test_freeing_pinned_memory_raises_nothing_and_its_copy_is_whole(call: str) -> None:
    target = torch.zeros(1 << 16, device="npu")
    torch.npu.synchronize()
    source = torch.full((1 << 16,), 3.0).pin_memory()
    with faults(copy_latency_us=5000):
        target.copy_(source, non_blocking=True)
        with faults(fail=call) as injected:
            del source
        assert injected.count == 1
        torch.full((1 << 16,), 7.0).pin_memory()  # would take the block if it were free
    torch.npu.synchronize()
    assert bool((target == 3).all())


def test_a_copy_whose_wait_fails_is_over_before_the_error_is_raised() -> None:
    source, target = torch.full((1 << 16,), 3.0, device="npu"), torch.zeros(1 << 16)
    torch.npu.synchronize()
    with (
        faults(copy_latency_us=20_000),
        faults(fail=("stream_synchronize", "stream_wait_for")),
        pytest.raises(RuntimeError, match="waiting for a copy failed on device 'npu': injected"),
    ):
        target.copy_(source, non_blocking=True)
    assert bool((target == 3).all())


# --- work


@pytest.mark.parametrize("calls", [("module_load", "module_load_data"), ("get_function",)])
def test_device_code_that_cannot_be_loaded_is_named_and_loaded_later(
    calls: tuple[str, ...],
) -> None:
    operator = ops.kernel_op(
        "devices_faults::late_add(Tensor x) -> Tensor",
        source=jit.Source(text=f"// {calls}{ADD_ONE}", name="late_add.cpp"),
        outputs=ops.empty_like("x"),
        kind="device",
    )
    try:
        x = torch.zeros(3, device="npu")
        with faults(fail=calls), pytest.raises(RuntimeError, match="loading kernel 'run' of"):
            operator(x)
        assert operator(x).tolist() == [1, 1, 1]
    finally:
        operator.undefine()


def test_a_launch_that_is_refused_names_the_operator(add_one: ops.KernelOperator) -> None:
    x = torch.zeros(3, device="npu")
    with faults(fail="launch", operator="devices_faults::add_one"):
        with pytest.raises(RuntimeError, match="devices_faults::add_one") as raised:
            add_one(x)
        assert "injected failure of launch" in str(raised.value)
        assert add_one(x).tolist() == [1, 1, 1]


def test_a_launch_that_fails_in_its_stream_is_told_by_the_next_wait(
    add_one: ops.KernelOperator,
) -> None:
    x = torch.zeros(3, device="npu")
    with faults(fail="launch", fail_async=True):
        add_one(x)
        with pytest.raises(KernelError) as raised:
            torch.npu.synchronize()
    assert str(raised.value) == (
        "operator 'devices_faults::add_one' failed in stream 0 of device 0: injected failure"
    )


def test_a_copy_to_the_host_that_fails_gives_no_numbers() -> None:
    x = torch.arange(6.0, device="npu")
    back = torch.full((6,), -1.0).pin_memory()
    with faults(fail="copy_async", fail_async=True):
        back.copy_(x, non_blocking=True)
        with pytest.raises(RuntimeError, match="a copy of 24 bytes failed in stream 0"):
            torch.npu.current_stream().synchronize()
    assert back.tolist() == [-1.0] * 6


def test_an_event_that_is_never_over_ends_in_the_time_limit(
    fresh_python: Callable[..., str],
) -> None:
    code = """
import torch
from bringup import devices
devices.load_driver("sim")
event = torch.npu.Event()
with devices.sim.faults(lost_event=1) as injected:
    event.record()
    print(event.query())
    try:
        event.synchronize()
    except RuntimeError as error:
        print(error)
event.synchronize()
print(event.query(), injected.count)
"""
    said = fresh_python(code, BRINGUP_WAIT_TIMEOUT="1").splitlines()
    assert said[0] == "False"
    assert "has not ended after 1.0 s (BRINGUP_WAIT_TIMEOUT)" in said[1]
    assert said[2] == "True 1"


def test_memory_of_a_stream_whose_event_is_lost_is_not_reused_before_it_is_over() -> None:
    side = torch.npu.Stream()
    x = torch.ones(3 << 20, device="npu")
    address = x.data_ptr()
    torch.npu.synchronize()
    with faults(lost_event=1):
        x.record_stream(side)
        del x
        assert torch.empty(3 << 20, device="npu").data_ptr() != address
    torch.npu.empty_cache()


def test_a_lost_device_says_so_everywhere_and_gives_its_memory_back() -> None:
    x, stream = torch.ones(4, device="npu"), torch.npu.Stream()
    torch.npu.synchronize()  # what a lost device has not run, it never runs
    with faults(lost_after=0, device=0):
        for use in (x.clone, x.cpu, lambda: x + 1, torch.npu.synchronize, stream.query):
            with pytest.raises(RuntimeError, match="device 0 is lost"):
                use()
        assert torch.ones(2, device="npu:1").sum().item() == 2
    assert x.sum().item() == 4


def test_work_that_a_lost_device_never_ran_is_not_taken_for_done() -> None:
    x, stream, elsewhere = (
        torch.ones(4, device="npu"),
        torch.npu.Stream(),
        torch.npu.Stream("npu:1"),
    )
    torch.npu.synchronize()
    with faults(copy_latency_us=100_000):
        with torch.npu.stream(stream):
            x.fill_(2)
        elsewhere.wait_event(stream.record_event())
        with faults(lost_after=0, device=0):
            with pytest.raises(RuntimeError, match="device 0 is lost"):
                x.clone()
            with pytest.raises(RuntimeError, match="device 0 was lost before all work"):
                elsewhere.synchronize()
    with pytest.raises(RuntimeError, match="device 0 was lost before all work"):
        stream.synchronize()
    assert x.sum().item() == 4


# --- what is given back


def test_memory_that_the_driver_does_not_take_back_is_freed_later() -> None:
    torch.npu.empty_cache()
    free = torch.npu.mem_get_info()[0]
    x = torch.empty(64 << 20, dtype=torch.uint8, device="npu")
    reserved = torch.npu.memory_reserved()
    del x
    with faults(fail="mem_free") as injected:
        with pytest.raises(RuntimeError, match="injected failure of mem_free"):
            torch.npu.empty_cache()
        assert torch.npu.memory_reserved() == reserved
        torch.npu.empty_cache()
    assert injected.functions["mem_free"].injected == 1
    assert torch.npu.mem_get_info()[0] >= free


def test_pinned_memory_that_the_driver_does_not_take_back_is_freed_later() -> None:
    torch.accelerator.empty_host_cache()
    pinned = [torch.empty(size).pin_memory() for size in (1 << 10, 1 << 20, 1 << 20)]
    del pinned
    with faults(fail="host_free") as injected:
        with pytest.raises(RuntimeError, match=r"injected failure of host_free.* keeps 1 ranges"):
            torch.accelerator.empty_host_cache()
        assert injected.functions["host_free"].calls == 3  # all others are free
        torch.accelerator.empty_host_cache()
        assert injected.functions["host_free"].calls == 4
        torch.accelerator.empty_host_cache()
    assert injected.functions["host_free"].calls == 4


def test_memory_that_stays_registered_stays_allocated_and_is_unregistered_later() -> None:
    host = torch.ones(1 << 20)
    address = host.data_ptr()
    with faults(fail="host_unregister") as injected:
        with (
            pytest.raises(DeviceError, match=r"injected failure of host_unregister.*stays reg"),
            devices.register_host_memory(host),
        ):
            pass
        assert host.is_pinned()
        del host
        assert torch.empty(1 << 20).data_ptr() != address
        with devices.register_host_memory(torch.ones(3)):
            assert injected.functions["host_unregister"].calls == 2
    assert devices.pointer_info(address).kind is devices.PointerKind.UNKNOWN


DESTROYED = """
import torch
from bringup import devices, graphs
devices.load_driver("sim")
x = torch.ones(5, device="npu")
with devices.sim.faults(fail=("event_destroy", "graph_destroy"), fail_every=1) as injected:
    for _ in range(2):
        event = torch.npu.Event()
        event.record()
        del event
        graph = graphs.CapturedGraph()
        with graphs.capture(graph):
            y = x + 1
        graph.replay()
        graph.reset()
        del graph
print(y.tolist())
print(all(one.injected > 1 for name, one in injected.functions.items() if "destroy" in name))
"""


def test_what_cannot_be_destroyed_is_one_warning_a_function() -> None:
    done = run_forked(DESTROYED)
    assert done.returncode == 0
    assert done.stdout.splitlines() == ["[2.0, 2.0, 2.0, 2.0, 2.0]", "True"]
    for function in ("event_destroy", "graph_destroy"):
        warned = f"the driver's {function} failed (injected failure of {function}), and the driver"
        assert done.stderr.count(warned) == 1


# --- order


def test_a_wait_that_is_missing_shows_when_streams_are_late() -> None:
    source, target = torch.ones(9).pin_memory(), torch.zeros(9, device="npu")
    back = torch.empty(9).pin_memory()
    side = torch.npu.Stream()
    torch.npu.synchronize()
    for waits in (False, True):
        target.zero_()
        torch.npu.synchronize()
        with faults(reorder="late"):
            with torch.npu.stream(side):
                target.copy_(source, non_blocking=True)
            if waits:
                torch.npu.current_stream().wait_stream(side)
            back.copy_(target, non_blocking=True)
            torch.npu.current_stream().synchronize()
        assert back.sum().item() == (9 if waits else 0)
        side.synchronize()


@pytest.mark.parametrize("order", ["late", "random"])
def test_programs_that_wait_are_right_in_every_order(
    order: str, add_one: ops.KernelOperator
) -> None:
    with faults(reorder=order, **({"seed": 5} if order == "random" else {})):  # type: ignore[arg-type]
        x = torch.arange(64.0).pin_memory().to("npu", non_blocking=True)
        side = torch.npu.Stream()
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            y = add_one(add_one(x))
            x.record_stream(side)
        del x
        torch.npu.current_stream().wait_stream(side)
        other = add_one(y).to("npu:1")
        assert torch.equal((other * 2).cpu(), (torch.arange(64.0) + 3) * 2)
        y.record_stream(torch.npu.current_stream())


def test_latency_and_bandwidth_make_copies_last() -> None:
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    x = torch.ones(1 << 18, device="npu")  # 1 MiB
    with faults(copy_latency_us=20_000, copy_bandwidth=20 << 20):  # 20 ms, and 50 ms for 1 MiB
        start.record()
        x.clone()
        end.record()
        end.synchronize()
    assert start.elapsed_time(end) >= 70
