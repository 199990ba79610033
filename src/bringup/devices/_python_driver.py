"""A driver written in Python, for first steps: `load_driver(MyDriver())`. Calls hold the GIL."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from bringup.devices._driver_abi import (
    ABI,
    DTYPES,
    FUNCTIONS,
    LIFECYCLE,
    DevicePropsStruct,
    Status,
    Table,
)
from bringup.errors import DriverError


@dataclass(frozen=True)
class DeviceProps:
    """What a driver in Python says about a device, as in `bringup_device_props`.

    Attributes:
        name: for people, at most 63 bytes.
        arch: for compilers, at most 31 bytes.
        total_memory: bytes.
        core_count: how many blocks can run at once.
        supports_float64: whether there are float64 and complex128 tensors on it.
        supports_int64: whether kernels may use 64-bit integers.
        host_visible_memory: whether the host may touch device memory (`host_view`).
        dtypes: torch's names of the dtypes that its tensors may have; None for all.
        alignment: of the addresses of `mem_alloc`: a power of two of at least 64.
        uuid: 16 bytes, the same for this device in every process; empty for none.
        driver_version: at most 31 bytes.
        least_priority: of streams; greatest_priority <= 0 <= least_priority.
        greatest_priority: the most urgent.
        max_allocation: the most bytes of one `mem_alloc`; 0 where it is not known.
    """

    name: str
    arch: str
    total_memory: int
    core_count: int = 1
    supports_float64: bool = True
    supports_int64: bool = True
    host_visible_memory: bool = False
    dtypes: frozenset[str] | None = None
    alignment: int = 64
    uuid: bytes = b""
    driver_version: str = ""
    least_priority: int = 0
    greatest_priority: int = 0
    max_allocation: int = 0


class _SynchronousDriver:
    """Streams and events where all work is done before a method returns."""

    def __init__(self) -> None:
        self._handles = itertools.count(1)

    def init(self) -> None:
        """Called once, before every other method."""

    def shutdown(self) -> None:
        """Called once at the end of the process; no call follows."""

    def device_count(self) -> int:
        """Return number of devices."""
        return 1

    def stream_create(self, device: int, priority: int) -> int:
        """Return a handle that differs from every live one."""
        return next(self._handles)

    def stream_destroy(self, stream: int) -> None:
        """End a stream without pending work."""

    def stream_synchronize(self, device: int, stream: int | None) -> None:
        """Wait for the stream's work and raises what failed in it."""

    def stream_query(self, device: int, stream: int | None) -> bool:
        """Return whether the stream's work is done."""
        return True

    def event_create(self, device: int, timing: bool) -> int:
        """Return a handle that differs from every live one."""
        return next(self._handles)

    def event_destroy(self, event: int) -> None:
        """End an event without pending work."""

    def event_record(self, event: int, device: int, stream: int | None) -> None:
        """Let the event stand for the stream's work until here."""

    def event_wait(self, event: int, device: int, stream: int | None) -> None:
        """Later work of the stream waits for the event."""

    def event_query(self, event: int) -> bool:
        """Return whether the event's work is done."""
        return True


class PythonDriver(_SynchronousDriver, ABC):
    """A driver whose functions are methods, named and called as in `bringup/driver.h`.

    A subclass gives at least `device_props`, `mem_alloc`, `mem_free` and `copy_async`. Streams and
    events are those of a driver that does all work before it returns; one that does not overrides
    them. The optional functions `device_synchronize`, `mem_info`, `fill_async`,
    `event_synchronize`, `event_elapsed` and `host_view` exist where a subclass defines them; it
    cannot have the other functions, and is refused when it is loaded.

    Addresses and handles are integers, the default stream is None. A method says what went wrong by
    an exception: `MemoryError` is BRINGUP_OUT_OF_MEMORY, `NotImplementedError` BRINGUP_UNSUPPORTED,
    any other BRINGUP_ERROR; its text becomes the driver's last_error. Methods are called from any
    thread, with the GIL. A forked child cannot use the driver.

    Attributes:
        device_name: what torch calls the device.
        description: what the driver says of itself.
    """

    device_name = "python"
    description = "a driver in Python"

    def __init__(self) -> None:
        super().__init__()
        self._process = os.getpid()
        self._words = threading.local()
        self._callbacks: list[Any] = []  # ctypes keeps none of them alive
        self._table: Table | None = None

    # --- what a driver has to do

    @abstractmethod
    def device_props(self, device: int) -> DeviceProps:
        """Return what the device is."""

    @abstractmethod
    def mem_alloc(self, device: int, size: int) -> int:
        """Return the address of `size` bytes of `device`, aligned as the properties say."""

    @abstractmethod
    def mem_free(self, device: int, address: int) -> None:
        """Take back the memory at `address` of `device`, which no pending work touches."""

    @abstractmethod
    def copy_async(
        self,
        kind: int,
        dst_device: int,
        dst: int,
        src_device: int,
        src: int,
        size: int,
        stream: int | None,
    ) -> None:
        """Copy `size` bytes from `src` of `src_device` to `dst` of `dst_device`, in the order of
        `stream` (None: the default one). `kind`: 1 host to device, 2 the reverse, 3 between
        devices.
        """

    # --- how it becomes a table

    @property
    def path(self) -> Path:
        """Return what messages call it, where they name another driver's library."""
        kind = type(self)
        return Path(f"<{kind.__module__}.{kind.__qualname__}>")

    def table_address(self) -> int:
        """Return the address of the function table; it and this object live as long as the process.
        Raises `DriverError`: a subclass's `__init__` did not call this class's, or it has a
        function of `bringup/driver.h` that a driver in Python cannot have.
        """
        if not hasattr(self, "_callbacks"):
            raise DriverError(
                f"the driver {self.path} is not ready: its __init__ has to call super().__init__()"
            )
        if self._table is None:
            self._table = self._make_table()
            _alive.append(self)
        return ctypes.addressof(self._table)

    def _make_table(self) -> Table:
        self._refuse_other_functions()
        table = Table(
            struct_size=ctypes.sizeof(Table),
            abi_version=ABI,
            device_name=self.device_name.encode(),
            description=self.description.encode(),
            capabilities=LIFECYCLE,
        )
        for name, adapter in _ADAPTERS.items():
            method = getattr(self, name, None)
            if method is not None:
                self._fill(table, name, ctypes.c_int32, self._guarded(adapter, method))
        self._fill(table, "last_error", ctypes.c_void_p, self._last_error)
        return table

    def _refuse_other_functions(self) -> None:
        """Refuse methods that are no driver functions: their author misspelt one."""
        others = [name for name in FUNCTIONS if name not in _ADAPTERS and hasattr(self, name)]
        if not others:
            return
        why = ""
        if any(name.startswith("profiler_") for name in others):
            why = (
                " (records of a profiler are counted under a lock for each stream, for which a"
                " thread with the GIL could wait while its holder waits for the GIL)"
            )
        raise DriverError(
            f"the driver {self.path} has {', '.join(others)}, which a driver in Python cannot"
            f" have{why}: expected no methods of bringup/driver.h but {', '.join(_ADAPTERS)}."
            " `bringup new driver NAME` makes a driver in C, which can have all of them"
        )

    def _fill(self, table: Table, name: str, result: Any, function: Callable[..., Any]) -> None:
        callback = ctypes.CFUNCTYPE(result, *FUNCTIONS[name].values())(function)
        self._callbacks.append(callback)
        setattr(table, name, ctypes.cast(callback, ctypes.c_void_p).value)

    def _guarded(
        self, adapter: Callable[..., Any], method: Callable[..., Any]
    ) -> Callable[..., Any]:
        def call(*arguments: Any) -> int:
            # Nothing may be raised through C, so whatever it is becomes a status.
            try:
                if os.getpid() != self._process:
                    raise RuntimeError(f"the driver {self.path} cannot be used in a forked process")
                status = adapter(method, *arguments)
            except BaseException as error:
                words = f"{type(error).__name__}: {error}".encode(errors="replace")
                self._words.buffer = ctypes.create_string_buffer(words)
                return int(_status_of(error))
            return int(Status.OK if status is None else status)

        return call

    def _last_error(self) -> int | None:
        buffer = getattr(self._words, "buffer", None)
        return None if buffer is None else ctypes.addressof(buffer)


_alive: list[PythonDriver] = []  # whose tables torch may call until the end of the process


def _status_of(error: BaseException) -> Status:
    if isinstance(error, MemoryError):
        return Status.OUT_OF_MEMORY
    if isinstance(error, NotImplementedError):
        return Status.UNSUPPORTED
    return Status.ERROR


# --- from C's arguments to Python's, and results back; each adapter is given the method first


def _value(method: Callable[..., Any], *arguments: Any) -> None:
    *given, result = arguments
    result[0] = method(*given)


def _plain(method: Callable[..., Any], *arguments: Any) -> None:
    method(*arguments)


def _query(method: Callable[..., Any], *arguments: Any) -> Status:
    return Status.OK if method(*arguments) else Status.NOT_READY


def _event(method: Callable[..., Any], device: int, timing: int, event: Any) -> None:
    event[0] = method(device, timing != 0)


def _mem_info(method: Callable[..., Any], device: int, free: Any, total: Any) -> None:
    free[0], total[0] = method(device)


def _device_props(method: Callable[..., Any], device: int, props: Any) -> None:
    filled = _props_struct(method(device))
    filled.struct_size = props[0].struct_size
    known = min(filled.struct_size, ctypes.sizeof(filled))
    ctypes.memmove(props, ctypes.byref(filled), known)


def _props_struct(props: DeviceProps) -> Any:
    if not isinstance(props, DeviceProps):
        raise TypeError(f"device_props: expected a devices.DeviceProps, got {props!r}")
    unknown = sorted((props.dtypes or frozenset()) - set(DTYPES))
    if unknown:
        raise ValueError(f"device_props: unknown dtypes {', '.join(unknown)}; known: {DTYPES}")
    if len(props.uuid) not in (0, 16):
        raise ValueError(f"device_props: expected a uuid of 16 bytes, got {len(props.uuid)}")
    given = {one.name: getattr(props, one.name) for one in fields(DeviceProps)}
    del given["dtypes"], given["uuid"]
    texts = {name: _text(text, name) for name, text in given.items() if isinstance(text, str)}
    filled = DevicePropsStruct(**{**given, **texts})
    filled.uuid[: len(props.uuid)] = list(props.uuid)
    if props.dtypes is not None:
        filled.dtypes = sum(1 << bit for bit, name in enumerate(DTYPES) if name in props.dtypes)
    return filled


def _text(text: str, field: str) -> bytes:
    room = getattr(DevicePropsStruct, field).size - 1
    encoded = text.encode()
    if len(encoded) > room:
        raise ValueError(f"device_props: {field} has {len(encoded)} bytes, at most {room} fit")
    return encoded


_ADAPTERS: dict[str, Callable[..., Any]] = {
    "init": _plain, "shutdown": _plain, "device_count": _value, "device_props": _device_props,
    "device_synchronize": _plain, "mem_alloc": _value, "mem_free": _plain, "mem_info": _mem_info,
    "copy_async": _plain, "fill_async": _plain, "stream_create": _value, "stream_destroy": _plain,
    "stream_synchronize": _plain, "stream_query": _query, "event_create": _event,
    "event_destroy": _plain, "event_record": _plain, "event_wait": _plain, "event_query": _query,
    "event_synchronize": _plain, "event_elapsed": _value, "host_view": _value,
}  # fmt: skip
