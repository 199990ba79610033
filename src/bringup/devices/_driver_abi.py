"""`bringup/driver.h` for ctypes: its structures, the functions of its table, and opening a driver
without torch.
"""

from __future__ import annotations

import ctypes as c
from pathlib import Path
from typing import Any

from bringup.errors import DriverError

__all__ = [
    "CAPABILITIES",
    "FUNCTIONS",
    "STATUS_NAMES",
    "DeviceProps",
    "Dim3",
    "ErrorDetail",
    "Launch",
    "LaunchValues",
    "List",
    "PointerInfo",
    "Record",
    "Release",
    "Table",
    "Tensor",
    "Value",
    "open_table",
]

_ABI = 1
_i32, _u32, _i64, _u64, _u8, _size = (
    c.c_int32, c.c_uint32, c.c_int64, c.c_uint64, c.c_uint8, c.c_size_t,
)  # fmt: skip
_pointer, _text = c.c_void_p, c.c_char_p

STATUS_NAMES = {
    0: "BRINGUP_OK",
    1: "BRINGUP_INVALID",
    2: "BRINGUP_OUT_OF_MEMORY",
    3: "BRINGUP_NOT_READY",
    4: "BRINGUP_UNSUPPORTED",
    5: "BRINGUP_DEVICE_LOST",
    6: "BRINGUP_KERNEL_FAILED",
    7: "BRINGUP_ERROR",
    8: "BRINGUP_TIMEOUT",
}


class DeviceProps(c.Structure):
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


_out_pointer = c.POINTER(_pointer)
_launch, _values = c.POINTER(Launch), c.POINTER(LaunchValues)

# The parameters of every function, in the order of the table. `last_error` is the only one that
# returns no status, and `capabilities` is no function.
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "device_count": (c.POINTER(_i32),),
    "device_props": (_i32, c.POINTER(DeviceProps)),
    "device_synchronize": (_i32,),
    "mem_alloc": (_i32, _size, _out_pointer),
    "mem_free": (_i32, _pointer),
    "mem_info": (_i32, c.POINTER(_size), c.POINTER(_size)),
    "copy_async": (_i32, _i32, _pointer, _i32, _pointer, _size, _pointer),
    "fill_async": (_i32, _pointer, _u8, _size, _pointer),
    "stream_create": (_i32, _i32, _out_pointer),
    "stream_destroy": (_pointer,),
    "stream_synchronize": (_i32, _pointer),
    "stream_query": (_i32, _pointer),
    "event_create": (_i32, _i32, _out_pointer),
    "event_destroy": (_pointer,),
    "event_record": (_pointer, _i32, _pointer),
    "event_wait": (_pointer, _i32, _pointer),
    "event_query": (_pointer,),
    "event_synchronize": (_pointer,),
    "event_elapsed": (_pointer, _pointer, c.POINTER(c.c_double)),
    "last_error": (),
    "host_alloc": (_size, _out_pointer),
    "host_free": (_pointer,),
    "host_view": (_i32, _pointer, _out_pointer),
    "host_func": (_i32, _pointer, _pointer, _pointer),
    "module_load": (_i32, _text, _out_pointer),
    "module_unload": (_pointer,),
    "get_function": (_pointer, _text, _out_pointer),
    "launch": (_i32, _pointer, _launch),
    "graph_create": (_i32, _out_pointer),
    "graph_destroy": (_pointer,),
    "graph_add_kernel": (_pointer, _launch),
    "graph_add_copy": (_pointer, _i32, _pointer, _pointer, _size),
    "graph_add_host_func": (_pointer, _pointer, _pointer),
    "graph_launch": (_pointer, _pointer),
    "graph_update_kernel": (_pointer, _i32, _launch),
    "capabilities": (),
    "init": (),
    "shutdown": (),
    "error_detail": (c.POINTER(ErrorDetail),),
    "stream_wait_for": (_i32, _pointer, _i64),
    "event_wait_for": (_pointer, _i64),
    "device_reset": (_i32,),
    "host_register": (_pointer, _size),
    "host_unregister": (_pointer,),
    "pointer_info": (_pointer, c.POINTER(PointerInfo)),
    "copy_2d_async": (
        _i32, _i32, _pointer, _size, _i32, _pointer, _size, _size, _size, _pointer,
    ),
    "fill_wide_async": (_i32, _pointer, _pointer, _u32, _size, _pointer),
    "module_load_data": (_i32, _pointer, _size, _out_pointer),
    "launch_values": (_i32, _pointer, _values),
    "graph_add_values": (_pointer, _values),
    "graph_update_values": (_pointer, _i32, _values),
    "profiler_start": (_i32,),
    "profiler_stop": (_i32,),
    "profiler_read": (_i32, c.POINTER(Record), _i32, c.POINTER(_i32), c.POINTER(_u64)),
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
    ))
    for function in functions
}  # fmt: skip


class Table(c.Structure):
    """bringup_driver, its functions as addresses; 0 for what the driver has not."""

    _fields_ = (
        ("struct_size", _u32),
        ("abi_version", _u32),
        ("device_name", _text),
        ("description", _text),
        *((name, _u64 if name == "capabilities" else _pointer) for name in FUNCTIONS),
    )

    def function(self, name: str) -> Any:
        """The function, callable with ctypes values, or None: the driver has none."""
        address = getattr(self, name)
        if not address:
            return None
        result = _text if name == "last_error" else _i32
        return c.CFUNCTYPE(result, *FUNCTIONS[name])(address)


def open_table(path: Path) -> Table:
    """The function table of a driver, completed with nothing to the size that is known here.

    Raises:
        DriverError: the library cannot be loaded, is no driver, or does not speak this ABI.
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
    given = get(_ABI)
    if not given:
        raise DriverError(f"the driver {path} does not speak driver ABI {_ABI}")
    size = _u32.from_address(given).value
    table = Table()
    c.memmove(c.byref(table), given, min(size, c.sizeof(Table)))
    for name, bit in CAPABILITIES.items():
        if not table.capabilities & (1 << bit):
            setattr(table, name, None)
    return table
