"""`bringup/driver.h` for ctypes: the function table, the properties of a device, and statuses.

A test compares sizes, offsets and numbers with what a C compiler makes of the header.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from enum import IntEnum
from typing import Any

__all__ = ["ABI", "DTYPES", "LIFECYCLE", "SIGNATURES", "DevicePropsStruct", "Status", "Table"]

ABI = 1
LIFECYCLE = 1 << 0


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
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex32",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
)


class DevicePropsStruct(ctypes.Structure):
    """bringup_device_props."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("name", ctypes.c_char * 64),
        ("arch", ctypes.c_char * 32),
        ("total_memory", c_uint64),
        ("core_count", c_uint32),
        ("supports_float64", c_uint32),
        ("supports_int64", c_uint32),
        ("host_visible_memory", c_uint32),
        ("runs_host_code", c_uint32),
        ("dtypes", c_uint64),
        ("alignment", c_uint32),
        ("uuid", c_uint8 * 16),
        ("driver_version", ctypes.c_char * 32),
        ("least_priority", c_int32),
        ("greatest_priority", c_int32),
        ("max_grid", c_uint32 * 3),
        ("max_block", c_uint32 * 3),
        ("max_block_threads", c_uint32),
        ("max_shared_bytes", c_uint32),
    )


# The functions that a driver in Python can have, with their arguments. All but last_error return a
# status. Addresses and handles are numbers; NULL is None.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "device_count": (POINTER(c_int32),),
    "device_props": (c_int32, POINTER(DevicePropsStruct)),
    "device_synchronize": (c_int32,),
    "mem_alloc": (c_int32, c_size_t, POINTER(c_void_p)),
    "mem_free": (c_int32, c_void_p),
    "mem_info": (c_int32, POINTER(c_size_t), POINTER(c_size_t)),
    "copy_async": (c_int32, c_int32, c_void_p, c_int32, c_void_p, c_size_t, c_void_p),
    "fill_async": (c_int32, c_void_p, c_uint8, c_size_t, c_void_p),
    "stream_create": (c_int32, c_int32, POINTER(c_void_p)),
    "stream_destroy": (c_void_p,),
    "stream_synchronize": (c_int32, c_void_p),
    "stream_query": (c_int32, c_void_p),
    "event_create": (c_int32, c_int32, POINTER(c_void_p)),
    "event_destroy": (c_void_p,),
    "event_record": (c_void_p, c_int32, c_void_p),
    "event_wait": (c_void_p, c_int32, c_void_p),
    "event_query": (c_void_p,),
    "event_synchronize": (c_void_p,),
    "event_elapsed": (c_void_p, c_void_p, POINTER(c_double)),
    "last_error": (),
    "host_view": (c_int32, c_void_p, POINTER(c_void_p)),
    "init": (),
    "shutdown": (),
}

_FUNCTIONS_BEFORE_CAPABILITIES = (
    "device_count",
    "device_props",
    "device_synchronize",
    "mem_alloc",
    "mem_free",
    "mem_info",
    "copy_async",
    "fill_async",
    "stream_create",
    "stream_destroy",
    "stream_synchronize",
    "stream_query",
    "event_create",
    "event_destroy",
    "event_record",
    "event_wait",
    "event_query",
    "event_synchronize",
    "event_elapsed",
    "last_error",
    "host_alloc",
    "host_free",
    "host_view",
    "host_func",
    "module_load",
    "module_unload",
    "get_function",
    "launch",
    "graph_create",
    "graph_destroy",
    "graph_add_kernel",
    "graph_add_copy",
    "graph_add_host_func",
    "graph_launch",
    "graph_update_kernel",
)


class Table(ctypes.Structure):
    """bringup_driver, as far as a driver in Python fills it: to `shutdown`."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("abi_version", c_uint32),
        ("device_name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        *((name, c_void_p) for name in _FUNCTIONS_BEFORE_CAPABILITIES),
        ("capabilities", c_uint64),
        ("init", c_void_p),
        ("shutdown", c_void_p),
    )
