"""`bringup/driver.h` for ctypes, without torch, and opening a driver; a test compares it with C."""

from __future__ import annotations

import ctypes as c
from enum import IntEnum
from pathlib import Path
from typing import Any

from bringup.errors import DriverError

ABI = 1
LIFECYCLE = 1 << 0
COLLECTIVES = 13
_i32, _u32, _i64, _u64, _u8, _size = (
    c.c_int32, c.c_uint32, c.c_int64, c.c_uint64, c.c_uint8, c.c_size_t,
)  # fmt: skip
_pointer, _text = c.c_void_p, c.c_char_p


class Status(IntEnum):
    """bringup_status."""

    OK = 0
    INVALID = 1
    OUT_OF_MEMORY = 2
    NOT_READY = 3
    UNSUPPORTED = 4
    DEVICE_LOST = 5
    KERNEL_FAILED = 6
    ERROR = 7
    TIMEOUT = 8


# torch's names, in the order of the bits BRINGUP_DTYPE_*.
DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16",
    "bfloat16", "float32", "float64", "complex32", "complex64", "complex128", "float8_e4m3fn",
    "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
)  # fmt: skip


class DevicePropsStruct(c.Structure):
    """bringup_device_props."""

    _fields_ = (
        ("struct_size", _u32),
        ("name", c.c_char * 64),
        ("arch", c.c_char * 32),
        ("total_memory", _u64),
        ("core_count", _u32),
        ("supports_float64", _u32),
        ("supports_int64", _u32),
        ("host_visible_memory", _u32),
        ("runs_host_code", _u32),
        ("dtypes", _u64),
        ("alignment", _u32),
        ("uuid", _u8 * 16),
        ("driver_version", c.c_char * 32),
        ("least_priority", _i32),
        ("greatest_priority", _i32),
        ("max_grid", _u32 * 3),
        ("max_block", _u32 * 3),
        ("max_block_threads", _u32),
        ("max_shared_bytes", _u32),
        ("max_allocation", _u64),
    )


class Tensor(c.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", _pointer),
        ("device_type", _i32),
        ("device_id", _i32),
        ("ndim", _i32),
        ("code", _u8),
        ("bits", _u8),
        ("lanes", c.c_uint16),
        ("shape", c.POINTER(_i64)),
        ("strides", c.POINTER(_i64)),
        ("byte_offset", _u64),
    )


class List(c.Structure):
    """bringup_list."""

    _fields_ = (("data", _pointer), ("size", _i64))


Release = c.CFUNCTYPE(None, _pointer)


class Launch(c.Structure):
    """bringup_launch."""

    _fields_ = (
        ("struct_size", _u32),
        ("nargs", _i32),
        ("args", c.POINTER(_pointer)),
        ("kinds", c.POINTER(_u8)),
        ("fn", _pointer),
        ("grid", _i64),
        ("name", _text),
        ("owner", _pointer),
        ("release", Release),
        ("flags", _u64),
        ("work_items", _i64),
    )


class Value(c.Structure):
    """bringup_value."""

    _fields_ = (("kind", _u32), ("size", _u32), ("value", _u64))


class Dim3(c.Structure):
    """bringup_dim3."""

    _fields_ = (("x", _u32), ("y", _u32), ("z", _u32))


class LaunchValues(c.Structure):
    """bringup_launch_values_args."""

    _fields_ = (
        ("struct_size", _u32),
        ("nvalues", _i32),
        ("values", c.POINTER(Value)),
        ("fn", _pointer),
        ("grid", Dim3),
        ("block", Dim3),
        ("shared_bytes", _u32),
        ("name", _text),
        ("work_items", Dim3),
    )


class ErrorDetail(c.Structure):
    """bringup_error_detail."""

    _fields_ = (
        ("struct_size", _u32),
        ("code", _i64),
        ("device", _i32),
        ("stream", _pointer),
        ("kernel", c.c_char * 128),
        ("text", c.c_char * 512),
    )


class PointerInfo(c.Structure):
    """bringup_pointer_info."""

    _fields_ = (
        ("struct_size", _u32),
        ("kind", _i32),
        ("device", _i32),
        ("base", _pointer),
        ("bytes", _size),
    )


class Record(c.Structure):
    """bringup_record."""

    _fields_ = (
        ("struct_size", _u32),
        ("kind", _i32),
        ("device", _i32),
        ("stream", _pointer),
        ("number", _u64),
        ("begin", _i64),
        ("end", _i64),
        ("bytes", _u64),
        ("name", c.c_char * 128),
    )


class IpcHandle(c.Structure):
    """bringup_ipc_handle."""

    _fields_ = (("bytes", _u8 * 128),)


_launch, _values = c.POINTER(Launch), c.POINTER(LaunchValues)
_out_pointer, _out_i32, _out_u64, _out_size = map(c.POINTER, (_pointer, _i32, _u64, _size))


def _takes(**parameters: Any) -> dict[str, Any]:
    return parameters


# The parameters of every function, in the order of the table. Handles and addresses are numbers,
# NULL is None. `last_error` is the only one that returns no status, `capabilities` is no function.
FUNCTIONS: dict[str, dict[str, Any]] = {
    "device_count": _takes(count=_out_i32),
    "device_props": _takes(device=_i32, props=c.POINTER(DevicePropsStruct)),
    "device_synchronize": _takes(device=_i32),
    "mem_alloc": _takes(device=_i32, bytes=_size, address=_out_pointer),
    "mem_free": _takes(device=_i32, address=_pointer),
    "mem_info": _takes(device=_i32, free_bytes=_out_size, total_bytes=_out_size),
    "copy_async": _takes(
        kind=_i32, dst_device=_i32, dst=_pointer, src_device=_i32, src=_pointer, bytes=_size,
        stream=_pointer,
    ),
    "fill_async": _takes(device=_i32, dst=_pointer, value=_u8, bytes=_size, stream=_pointer),
    "stream_create": _takes(device=_i32, priority=_i32, stream=_out_pointer),
    "stream_destroy": _takes(stream=_pointer),
    "stream_synchronize": _takes(device=_i32, stream=_pointer),
    "stream_query": _takes(device=_i32, stream=_pointer),
    "event_create": _takes(device=_i32, timing=_i32, event=_out_pointer),
    "event_destroy": _takes(event=_pointer),
    "event_record": _takes(event=_pointer, device=_i32, stream=_pointer),
    "event_wait": _takes(event=_pointer, device=_i32, stream=_pointer),
    "event_query": _takes(event=_pointer),
    "event_synchronize": _takes(event=_pointer),
    "event_elapsed": _takes(start=_pointer, end=_pointer, milliseconds=c.POINTER(c.c_double)),
    "last_error": _takes(),
    "host_alloc": _takes(bytes=_size, address=_out_pointer),
    "host_free": _takes(address=_pointer),
    "host_view": _takes(device=_i32, address=_pointer, host_address=_out_pointer),
    "host_func": _takes(device=_i32, stream=_pointer, fn=_pointer, user=_pointer),
    "module_load": _takes(device=_i32, library=_text, module=_out_pointer),
    "module_unload": _takes(module=_pointer),
    "get_function": _takes(module=_pointer, name=_text, fn=_out_pointer),
    "launch": _takes(device=_i32, stream=_pointer, launch=_launch),
    "graph_create": _takes(device=_i32, graph=_out_pointer),
    "graph_destroy": _takes(graph=_pointer),
    "graph_add_kernel": _takes(graph=_pointer, launch=_launch),
    "graph_add_copy": _takes(graph=_pointer, kind=_i32, dst=_pointer, src=_pointer, bytes=_size),
    "graph_add_host_func": _takes(graph=_pointer, fn=_pointer, user=_pointer),
    "graph_launch": _takes(graph=_pointer, stream=_pointer),
    "graph_update_kernel": _takes(graph=_pointer, kernel=_i32, launch=_launch),
    "capabilities": _takes(),
    "init": _takes(),
    "shutdown": _takes(),
    "error_detail": _takes(detail=c.POINTER(ErrorDetail)),
    "stream_wait_for": _takes(device=_i32, stream=_pointer, nanoseconds=_i64),
    "event_wait_for": _takes(event=_pointer, nanoseconds=_i64),
    "device_reset": _takes(device=_i32),
    "host_register": _takes(address=_pointer, bytes=_size),
    "host_unregister": _takes(address=_pointer),
    "pointer_info": _takes(address=_pointer, info=c.POINTER(PointerInfo)),
    "copy_2d_async": _takes(
        kind=_i32, dst_device=_i32, dst=_pointer, dst_pitch=_size, src_device=_i32, src=_pointer,
        src_pitch=_size, width=_size, height=_size, stream=_pointer,
    ),
    "fill_wide_async": _takes(
        device=_i32, dst=_pointer, pattern=_pointer, size=_u32, count=_size, stream=_pointer
    ),
    "module_load_data": _takes(device=_i32, data=_pointer, bytes=_size, module=_out_pointer),
    "launch_values": _takes(device=_i32, stream=_pointer, launch=_values),
    "graph_add_values": _takes(graph=_pointer, launch=_values),
    "graph_update_values": _takes(graph=_pointer, kernel=_i32, launch=_values),
    "profiler_start": _takes(device=_i32),
    "profiler_stop": _takes(device=_i32),
    "profiler_read": _takes(
        device=_i32, records=c.POINTER(Record), capacity=_i32, count=_out_i32, lost=_out_u64
    ),
    "native_handle": _takes(device=_i32, stream=_pointer, kind=_i32, handle=_out_pointer),
    "stream_capture_begin": _takes(device=_i32, stream=_pointer),
    "stream_capture_end": _takes(device=_i32, stream=_pointer, graph=_pointer),
    "stream_capture_abort": _takes(device=_i32, stream=_pointer),
    "stream_capture_query": _takes(device=_i32, stream=_pointer, state=_out_i32),
    "ipc_export": _takes(device=_i32, address=_pointer, handle=c.POINTER(IpcHandle)),
    "ipc_open": _takes(device=_i32, handle=c.POINTER(IpcHandle), address=_out_pointer),
    "ipc_close": _takes(device=_i32, address=_pointer),
    "comm_id": _takes(id=_pointer),
    "comm_create": _takes(
        device=_i32, id=_pointer, rank=_i32, size=_i32, nanoseconds=_i64, comm=_out_pointer
    ),
    "comm_destroy": _takes(comm=_pointer),
    "comm_abort": _takes(comm=_pointer),
    "comm_query": _takes(comm=_pointer),
    "all_reduce": _takes(
        comm=_pointer, src=_pointer, dst=_pointer, count=_size, dtype=_u64, reduction=_i32,
        stream=_pointer,
    ),
    "reduce_scatter": _takes(
        comm=_pointer, src=_pointer, dst=_pointer, count=_size, dtype=_u64, reduction=_i32,
        stream=_pointer,
    ),
    "all_gather": _takes(comm=_pointer, src=_pointer, dst=_pointer, bytes=_size, stream=_pointer),
    "broadcast": _takes(comm=_pointer, address=_pointer, bytes=_size, root=_i32, stream=_pointer),
    "send": _takes(comm=_pointer, src=_pointer, bytes=_size, peer=_i32, stream=_pointer),
    "recv": _takes(comm=_pointer, dst=_pointer, bytes=_size, peer=_i32, stream=_pointer),
    "all_to_all": _takes(
        comm=_pointer, src=_pointer, src_bytes=_pointer, dst=_pointer, dst_bytes=_pointer,
        stream=_pointer,
    ),
}  # fmt: skip

# The bit behind which each of these functions is used.
CAPABILITIES: dict[str, int] = {
    function: bit
    for bit, functions in enumerate((
        ("init", "shutdown"),
        ("error_detail",),
        ("stream_wait_for", "event_wait_for"),
        ("device_reset",),
        ("host_register", "host_unregister"),
        ("pointer_info",),
        ("copy_2d_async",),
        ("fill_wide_async",),
        ("module_load_data",),
        ("launch_values", "graph_add_values", "graph_update_values"),
        ("profiler_start", "profiler_stop", "profiler_read"),
        ("native_handle",),
        tuple(f"stream_capture_{what}" for what in ("begin", "end", "abort", "query")),
        (
            "comm_id", "comm_create", "comm_destroy", "comm_abort", "comm_query", "all_reduce",
            "reduce_scatter", "all_gather", "broadcast", "send", "recv", "all_to_all",
        ),
        ("ipc_export", "ipc_open", "ipc_close"),
    ))
    for function in functions
}  # fmt: skip


class Table(c.Structure):
    """bringup_driver, its functions as addresses or None; `address` is the driver's own one."""

    address: int

    _fields_ = (
        ("struct_size", _u32),
        ("abi_version", _u32),
        ("device_name", _text),
        ("description", _text),
        *((name, _u64 if name == "capabilities" else _pointer) for name in FUNCTIONS),
    )

    def function(self, name: str) -> Any:
        """Return the function, callable with ctypes values, or None: the driver has none."""
        address = getattr(self, name)
        if not address:
            return None
        result = _text if name == "last_error" else _i32
        return c.CFUNCTYPE(result, *FUNCTIONS[name].values())(address)


def open_table(path: Path) -> Table:
    """Return a driver's function table, completed with nothing to the size known here. Raises
    `DriverError` for a library that does not load, is no driver, or speaks another ABI.
    """
    try:
        library = c.CDLL(str(path))
    except OSError as error:
        raise DriverError(f"the driver {path} cannot be loaded: {error}") from None
    try:
        get = library.bringup_driver_get
    except AttributeError:
        raise DriverError(f"{path} is no driver: it exports no 'bringup_driver_get'") from None
    get.restype, get.argtypes = _pointer, (_u32,)
    given = get(ABI)
    if not given:
        raise DriverError(f"the driver {path} does not speak driver ABI {ABI}")
    size = _u32.from_address(given).value
    table = Table()
    table.address = given
    c.memmove(c.byref(table), given, min(size, c.sizeof(Table)))
    for name, bit in CAPABILITIES.items():
        if not table.capabilities & (1 << bit):
            setattr(table, name, None)
    return table
