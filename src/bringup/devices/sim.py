"""The simulated NPU breaks on demand: out of memory, failing and slow work, a lost device. By the
environment: `BRINGUP_SIM_FAULTS=oom_after=10,copy_latency_us=200`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from bringup.devices import _load
from bringup.errors import DeviceError

__all__ = ["FaultCount", "InjectedFaults", "faults"]

_PROBLEM_BYTES = 4096
_COUNTS_BYTES = 16384


@dataclass(frozen=True)
class FaultCount:
    """What happened to the calls of one driver function.

    Attributes:
        calls: how often it was called.
        injected: how many of these calls were made to fail.
    """

    calls: int
    injected: int


class InjectedFaults:
    """What one `faults(...)` has seen and done: up to now, and after its block up to the end.

    Args:
        read: gives what happened up to now, by function.
    """

    def __init__(self, read: Callable[[], Mapping[str, FaultCount]]) -> None:
        self._read = read

    @property
    def functions(self) -> Mapping[str, FaultCount]:
        """Return how often each function of `driver.h` was called, and kernels of graphs ran."""
        return self._read()

    @property
    def count(self) -> int:
        """Return how many calls were made to fail."""
        return sum(one.injected for one in self.functions.values())

    @property
    def calls(self) -> int:
        """Return how many calls there were."""
        return sum(one.calls for one in self.functions.values())

    def _freeze(self) -> None:
        last = dict(self._read())
        self._read = lambda: last


@contextmanager
def faults(
    *,
    device: int | None = None,
    oom_after: int | None = None,
    oom_after_bytes: int | None = None,
    memory: int | None = None,
    fail: str | tuple[str, ...] = (),
    operator: str | None = None,
    fail_after: int | None = None,
    fail_every: int | None = None,
    fail_count: int | None = None,
    fail_status: Literal[
        "error", "invalid", "out_of_memory", "unsupported", "device_lost", "kernel_failed"
    ]
    | None = None,
    fail_async: bool = False,
    lost_after: int | None = None,
    lost_event: int | None = None,
    launch_latency_us: int | None = None,
    copy_latency_us: int | None = None,
    copy_bandwidth: int | None = None,
    reorder: Literal["eager", "random", "late"] | None = None,
    seed: int | None = None,
) -> Iterator[InjectedFaults]:
    """Make the simulated NPU fail within a `with` block, in all threads. Yields what was injected.

    Blocks may lie within each other or overlap in different threads: each counts for itself, and
    ends for itself. All numbers count from the begin of the block.

    Args:
        device: only calls for this device; None for all.
        oom_after: so many allocations of device memory succeed, further ones do not.
        oom_after_bytes: the same in bytes.
        memory: bytes that each device has.
        fail: the functions of `driver.h` of which calls fail, "launch" or ("launch", "copy_async");
            "any" for all but those that give back; "graph_kernel" for kernels of captured graphs.
        operator: only launches of this operator, "aten::mm".
        fail_after: so many calls succeed before the first failure; 0.
        fail_every: from then on, every call whose number is a multiple of this fails; without it
            one call fails.
        fail_count: at most so many calls fail.
        fail_status: what a refused call returns; "error".
        fail_async: the call succeeds and its work fails in its stream (launch, copy_async,
            copy_2d_async, fill_async, fill_wide_async, graph_launch, graph_kernel).
        lost_after: after so many calls the device is lost: all further ones fail, but those that
            give back, until the device is reset.
        lost_event: the recording of this number (1 is the first) is never complete. A wait
            for it lasts until the block ends, or for `BRINGUP_WAIT_TIMEOUT`.
        launch_latency_us: microseconds that each launch lasts longer.
        copy_latency_us: microseconds that each copy and fill lasts longer.
        copy_bandwidth: bytes that copies and fills move in a second.
        reorder: how the work of different streams is interleaved, that of one stays in order:
            "random" after delays that `seed` decides; "late" only when a caller waits for the
            stream or asks for it, which shows a missing wait each time.
        seed: for "random"; 0.

    Raises:
        DeviceError: no driver is loaded, or it is not the simulator; an argument has a value that
            it cannot have.
    """
    given = locals().items()
    settings = {
        key: value
        for key, value in given
        if value is not None and value is not False and value != ()
    }
    library = _simulator()
    number = _add(library, _text(settings))
    injected = InjectedFaults(lambda: _counts(library, number))
    try:
        yield injected
    finally:
        injected._freeze()
        library.bringup_sim_remove_faults(number)


def _text(settings: Mapping[str, object]) -> str:
    parts = []
    for key, value in settings.items():
        items = value if isinstance(value, tuple) else (value,)
        text = "|".join(str(int(item) if isinstance(item, bool) else item) for item in items)
        if "," in text or not text.isascii():
            raise DeviceError(f"devices.sim.faults: {key}={value!r}: expected no comma, only ASCII")
        parts.append(f"{key}={text}")
    return ",".join(parts)


def _simulator() -> ctypes.CDLL:
    info = _load.loaded()
    if info is None:
        raise DeviceError(
            'devices.sim.faults: no driver is loaded; call devices.load_driver("sim") first'
        )
    library = ctypes.CDLL(str(info.path))  # the copy that is loaded already
    if not hasattr(library, "bringup_sim_add_faults"):
        raise DeviceError(
            f"devices.sim.faults: the loaded driver, {info.path} of device {info.device_name!r}, is"
            ' not the simulator: only that breaks on demand (devices.load_driver("sim"))'
        )
    library.bringup_sim_add_faults.restype = ctypes.c_uint64
    library.bringup_sim_remove_faults.argtypes = [ctypes.c_uint64]
    library.bringup_sim_remove_faults.restype = None
    library.bringup_sim_fault_counts.restype = ctypes.c_size_t
    return library


def _add(library: ctypes.CDLL, settings: str) -> int:
    problem = ctypes.create_string_buffer(_PROBLEM_BYTES)
    number = library.bringup_sim_add_faults(
        settings.encode(), problem, ctypes.c_size_t(_PROBLEM_BYTES)
    )
    if number == 0:
        raise DeviceError(f"devices.sim.faults: {problem.value.decode()}")
    return int(number)


def _counts(library: ctypes.CDLL, number: int) -> Mapping[str, FaultCount]:
    text = ctypes.create_string_buffer(_COUNTS_BYTES)
    library.bringup_sim_fault_counts(ctypes.c_uint64(number), text, ctypes.c_size_t(_COUNTS_BYTES))
    found = {}
    for line in text.value.decode().splitlines():
        name, calls, injected = line.split()
        found[name] = FaultCount(int(calls), int(injected))
    return found
