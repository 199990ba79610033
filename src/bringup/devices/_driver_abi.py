"""`bringup/driver.h` for ctypes, as its text says, without torch; and opening a driver."""

from __future__ import annotations

import ctypes as c
import re
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any

from bringup import _native
from bringup.errors import DriverError

ABI = 1
LIFECYCLE = 1 << 0
COLLECTIVES = 13
_i32, _u32, _i64, _u64, _u8 = c.c_int32, c.c_uint32, c.c_int64, c.c_uint64, c.c_uint8
_pointer, _text = c.c_void_p, c.c_char_p
Release = c.CFUNCTYPE(None, _pointer)


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


class Tensor(c.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", _pointer), ("device_type", _i32), ("device_id", _i32), ("ndim", _i32),
        ("code", _u8), ("bits", _u8), ("lanes", c.c_uint16), ("shape", c.POINTER(_i64)),
        ("strides", c.POINTER(_i64)), ("byte_offset", _u64),
    )  # fmt: skip


class List(c.Structure):
    """bringup_list."""

    _fields_ = (("data", _pointer), ("size", _i64))


_FILE = _native.include_dir() / "bringup/driver.h"
_HEADER = re.sub(r"/\*.*?\*/", "", _FILE.read_text(), flags=re.DOTALL)
_STRUCTURE = re.compile(r"^typedef struct (\w+) \{(.*?)^\} \1;", re.M | re.S)
_UNION = re.compile(r"union \{.*?\} (?=\w+;)", re.S)
_FUNCTION = re.compile(r"[\w* ]+\(\*(\w+)\)\((.*)\)", re.S)
_VARIABLE = re.compile(r"(?:const )?(\w+)([* ]+)(.*)", re.S)
_NAME = re.compile(r"(\w+)(?:\[(\d+)\])?")

# torch's names, in the order of the bits BRINGUP_DTYPE_*.
DTYPES = tuple(name.lower() for name in re.findall(r"#define BRINGUP_DTYPE_(\w+)", _HEADER))

# Handles, addresses and functions are numbers, NULL is None; and so is what stands for bytes alone.
_TYPES: dict[str, Any] = {
    "void": None, "char": c.c_char, "double": c.c_double, "int32_t": _i32, "int64_t": _i64,
    "uint8_t": _u8, "uint32_t": _u32, "uint64_t": _u64, "size_t": c.c_size_t,
    "bringup_copy_kind": _i32, "bringup_comm_id": None,
    **{f"bringup_{name}": _pointer for name in ("kernel_fn", "stream", "event", "graph", "comm")},
}  # fmt: skip


def _declared(text: str) -> Iterator[tuple[str, Any]]:
    """Yield the names and types of what a declaration declares."""
    if function := _FUNCTION.fullmatch(text.strip()):
        yield function[1], _pointer
    elif variable := _VARIABLE.fullmatch(text.strip()):
        kind = _TYPES[variable[1]]
        for _ in range(variable[2].count("*")):
            kind = _pointer if kind is None else _text if kind is c.c_char else c.POINTER(kind)
        for name, count in _NAME.findall(variable[3]):
            yield name, kind * int(count) if count else kind


def _fields(body: str) -> list[tuple[str, Any]]:
    plain = _UNION.sub("uint64_t ", body)
    return [field for part in plain.split(";") for field in _declared(part)]


_BODIES = dict(_STRUCTURE.findall(_HEADER))
STRUCTURES: dict[str, Any] = {}
for _name, _body in _BODIES.items():
    if _name not in {"bringup_comm_id", "bringup_driver"}:
        _members = [(n, Release if n == "release" else kind) for n, kind in _fields(_body)]
        _TYPES[_name] = STRUCTURES[_name] = type(_name, (c.Structure,), {"_fields_": _members})
DevicePropsStruct, LaunchValues, Launch, Value, Dim3, Record = (
    STRUCTURES[f"bringup_{_name}"]
    for _name in ("device_props", "launch_values_args", "launch", "value", "dim3", "record")
)

# The parameters of every function, in the order of the table. `last_error` is the only one that
# returns no status, `capabilities` is no function.
FUNCTIONS: dict[str, dict[str, Any]] = {"capabilities": {}}
for _part in _BODIES["bringup_driver"].split(";"):
    if _found := _FUNCTION.fullmatch(_part.strip()):
        _given = [] if _found[2] == "void" else _found[2].split(",")
        FUNCTIONS[_found[1]] = dict(one for text in _given for one in _declared(text))

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
        ("graph_add_conditional",),
    ))
    for function in functions
}  # fmt: skip


class Table(c.Structure):
    """bringup_driver, its functions as addresses or None; `address` is the driver's own one."""

    address: int

    _fields_ = _fields(_BODIES["bringup_driver"])

    def function(self, name: str) -> Any:
        """Return the function, callable with ctypes values, or None: the driver has none."""
        address = getattr(self, name)
        if not address:
            return None
        result = _text if name == "last_error" else _i32
        return c.CFUNCTYPE(result, *FUNCTIONS[name].values())(address)


def open_table(path: Path) -> Table:
    """Return a driver's function table, completed to the size known here. Raises `DriverError`."""
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
