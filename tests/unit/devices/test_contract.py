"""What a driver of 1.1 gives through torch: properties, priorities, error detail, waits with a
limit, registered memory, pointers; and how one without them is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.training_program import TRAIN

from bringup import devices, jit, ops
from bringup.errors import DeviceError, KernelError


def test_properties_are_shown() -> None:
    first, second = (torch.npu.get_device_properties(index) for index in (0, 1))
    assert first.alignment == 256
    assert first.uuid is not None
    assert first.uuid != second.uuid
    assert first.driver_version == "1.1"
    assert (first.least_priority, first.greatest_priority) == (0, -2)
    assert (first.max_block_threads, first.max_shared_bytes) == (1024, 49152)
    assert torch.float64 in first.dtypes
    assert len(first.dtypes) == 22
    assert torch.npu.stream_priority_range() == (0, -2)


@pytest.mark.parametrize("priority", [0, -1, -2, -7, 3])
def test_a_stream_has_any_priority(priority: int) -> None:
    stream = torch.Stream("npu", priority=priority)
    with stream:
        y = torch.full((100,), 2.0, device="npu") * 3
    stream.synchronize()
    assert y.tolist() == [6.0] * 100


def test_streams_of_different_priorities_are_different() -> None:
    handles = {torch.Stream("npu", priority=priority).stream_id for priority in (0, -1, -2)}
    assert len(handles) == 3


failing = ops.kernel_op(
    "contract::refuses(Tensor x) -> Tensor",
    source=jit.Source(
        name="contract_refuses.cpp",
        text="""#include <bringup/kernel.h>
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) { return 507; }""",
    ),
    outputs=ops.empty_like("x"),
    checks=ops.dtype("x", torch.float32),
)


def test_the_detail_of_a_failure_is_in_its_message() -> None:
    failing(torch.ones(4, device="npu"))
    with pytest.raises(KernelError) as raised:
        torch.npu.synchronize()
    assert str(raised.value).endswith("[driver's detail: code 507, block 0 of 1]")


def test_a_wait_with_a_limit_is_the_driver_s_own(fresh_python: Callable[..., str]) -> None:
    code = """
import threading
import torch
from bringup import devices, jit, ops
devices.load_driver("sim")
endless = ops.kernel_op(
    "contract::sleeps(Tensor x) -> Tensor",
    source=jit.Source(name="sleeps.cpp", text='''#include <bringup/kernel.h>
#include <unistd.h>
BRINGUP_EXPORT int32_t run(void**, int32_t, const bringup_ctx*) { return sleep(4), 0; }'''),
    outputs=ops.empty_like("x"),
    checks=ops.dtype("x", torch.float32),
)
x = torch.ones(4, device="npu")
endless(x)
event = torch.Event("npu")
event.record()
for wait in (torch.npu.current_stream().synchronize, event.synchronize, torch.npu.synchronize):
    try:
        wait()
    except Exception as error:
        print("has not ended after 0.2 s (BRINGUP_WAIT_TIMEOUT)" in str(error))
"""
    assert fresh_python(code, BRINGUP_WAIT_TIMEOUT="0.2").split() == ["True"] * 3


# --- host memory


def test_registered_memory_is_pinned_and_its_copies_are_waited_for() -> None:
    host = torch.arange(1 << 20, dtype=torch.float32)
    target = torch.empty(1 << 20, device="npu")
    assert not host.is_pinned()
    with devices.register_host_memory(host) as same:
        assert same is host
        assert host.is_pinned()
        assert host[5:].is_pinned()
        kind = devices.pointer_info(host.data_ptr()).kind
        assert kind is devices.PointerKind.HOST
        target.copy_(host, non_blocking=True)
        back = torch.empty_like(host)
        with devices.register_host_memory(back):
            back.copy_(target, non_blocking=True)
        assert torch.equal(back, host)  # unregistering waited
    assert not host.is_pinned()
    assert devices.pointer_info(host.data_ptr()).kind is devices.PointerKind.UNKNOWN


def test_memory_is_not_registered_twice() -> None:
    host = torch.zeros(1000)
    with devices.register_host_memory(host):
        with (
            pytest.raises(DeviceError, match="pinned or registered already"),
            devices.register_host_memory(host[10:]),
        ):
            raise AssertionError
        assert host.is_pinned()
    with devices.register_host_memory(host):
        assert host.is_pinned()


@pytest.mark.parametrize(
    ("tensor", "sentence"),
    [
        (lambda: torch.ones(3, device="npu"), "expected a tensor on cpu"),
        (lambda: torch.empty(0), "expected a tensor with memory"),
    ],
)
def test_what_cannot_be_registered(tensor: Callable[[], torch.Tensor], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence), devices.register_host_memory(tensor()):
        raise AssertionError


# --- pointers


def test_an_address_is_known_by_its_owner() -> None:
    x = torch.empty(1000, device="npu:1")
    found = devices.pointer_info(x.data_ptr() + 100)
    assert found.kind is devices.PointerKind.DEVICE
    assert found.device == torch.device("npu:1")
    assert found.base <= x.data_ptr()
    assert found.base + found.bytes >= x.data_ptr() + 4000
    nobody = devices.pointer_info(1)
    assert nobody == devices.PointerInfo(devices.PointerKind.UNKNOWN, None, 0, 0)


def test_the_device_of_memory_that_another_allocated_is_asked_of_the_driver() -> None:
    import ctypes

    from bringup import _native

    library = ctypes.CDLL(str(_native.sim_driver_path()))
    library.bringup_driver_get.restype = ctypes.c_void_p
    from bringup.devices._driver_abi import Table

    table = Table.from_address(library.bringup_driver_get(1))
    allocate = ctypes.CFUNCTYPE(
        ctypes.c_int32, ctypes.c_int32, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)
    )(table.mem_alloc)
    free = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)(table.mem_free)
    address = ctypes.c_void_p()
    assert allocate(1, 4096, ctypes.byref(address)) == 0
    native = _native.torch_library().devices
    assert native.device_of_address(address.value) == 1
    assert free(1, address) == 0
    with pytest.raises(RuntimeError, match="no device 'npu' holds the address"):
        native.device_of_address(address.value)


# --- a driver of the twelve required functions


def test_twelve_functions_train_a_model(
    build_driver: Callable[..., Path], fresh_python: Callable[..., str]
) -> None:
    code = f"""{TRAIN}
devices.load_driver(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
x = torch.randn(3, 8)

expected = train(copy.deepcopy(model), x, 3)
torch.testing.assert_close(train(model.to("minimal"), x.to("minimal"), 3), expected)
stream = torch.Stream("minimal")
with stream:
    y = torch.ones(1000, device="minimal") * 2
event = torch.Event("minimal")
event.record(stream)
event.synchronize()
stream.synchronize()
torch.minimal.synchronize()
print(y.sum().item(), stream.query(), event.query())
free, total = torch.minimal.mem_get_info()
print(total == 1 << 20, free < total)
try:
    torch.Event("minimal", enable_timing=True).record()
except RuntimeError as error:
    print("without enable_timing=True" in str(error))
for call in (
    lambda: torch.minimal.reset_device(),
    lambda: devices.pointer_info(1),
    lambda: devices.register_host_memory(x).__enter__(),
):
    try:
        call()
    except Exception as error:
        print(type(error).__name__)
"""
    assert fresh_python(code, str(build_driver("TWELVE"))).splitlines() == [
        "2000.0 True True",
        "True True",
        "True",
        "DeviceError",
        "DeviceError",
        "DeviceError",
    ]


def test_a_dtype_that_is_not_in_the_mask_is_refused(
    build_driver: Callable[..., Path], fresh_python: Callable[..., str]
) -> None:
    code = """
import sys
import torch
from bringup import devices
devices.load_driver(sys.argv[1])
for dtype in (torch.bfloat16, torch.float64, torch.complex64, torch.uint8, torch.float32):
    try:
        print(torch.zeros(2, dtype=dtype, device="minimal").dtype)
    except TypeError as error:
        print(str(error).split("Cast")[0].split("Leave")[0])
print(sorted(map(str, torch.minimal.get_device_properties().dtypes)))
"""
    said = fresh_python(code, str(build_driver("DTYPES")), BRINGUP_DRIVER_PROBE="0").splitlines()
    refused = "device 'minimal:0' has no tensors of torch.{}, as its driver says"
    assert said[0].startswith(refused.format("bfloat16") + ": expected torch.float32")
    assert said[1].startswith(refused.format("float64") + ": expected torch.float32")
    assert said[2].startswith(refused.format("complex64") + ", and none of a dtype like it")
    assert said[3].startswith(refused.format("uint8") + ": expected torch.int32")
    assert said[4] == "torch.float32"
    assert said[5] == "['torch.bool', 'torch.float32', 'torch.int32', 'torch.int64']"


@pytest.mark.parametrize(
    ("macro", "sentence"),
    [
        (
            "LIE_GROUP",
            "its capabilities announce BRINGUP_HAS_RESET, but its function 'device_reset",
        ),
        ("LIE_ALIGNMENT", "gave the alignment 100, which is no power of two of at least 64"),
        ("LIE_VERSION", "gave a driver_version without an end"),
    ],
)
def test_a_driver_that_contradicts_itself_is_refused(
    macro: str,
    sentence: str,
    build_driver: Callable[..., Path],
    fresh_python: Callable[..., str],
) -> None:
    code = """
import sys
from bringup import devices
try:
    devices.load_driver(sys.argv[1])
except Exception as error:
    print(error)
"""
    assert sentence in fresh_python(code, str(build_driver(macro)), BRINGUP_DRIVER_PROBE="0")
