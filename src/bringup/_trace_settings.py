"""Settings of a trace of the driver's calls; `bringup.settings` has them with all others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bringup import _settings
from bringup._settings import Setting

__all__ = ["FILE", "LIMIT", "PAYLOAD", "DriverTrace", "driver_trace", "driver_trace_environment"]

FILE = Setting(
    "BRINGUP_DRIVER_TRACE",
    "file for every call of the driver and what it answered; %p in it is the process's number",
    "none",
    lambda: None,
    _settings.optional_path,
)
PAYLOAD = Setting(
    "BRINGUP_DRIVER_TRACE_PAYLOAD",
    "1: a trace of the driver keeps what was copied between host and device, beside the file, and"
    " not only digests of it",
    "0",
    lambda: False,
    _settings.switch,
)
LIMIT = Setting(
    "BRINGUP_DRIVER_TRACE_LIMIT",
    "what a trace of the driver may take on disk before it ends: bytes, or a number with K, M or G;"
    " 0: no limit",
    "4G",
    lambda: 4 * 2**30,
    _settings.size,
)


@dataclass(frozen=True)
class DriverTrace:
    """Where the calls of the driver are written.

    Attributes:
        file: the trace; "%p" in it stands for the process's number.
        payload: whether the bytes of copies are kept beside it.
        limit: bytes that it may take on disk, or None.
    """

    file: Path
    payload: bool
    limit: int | None


def driver_trace() -> DriverTrace | None:
    """What `BRINGUP_DRIVER_TRACE`, `..._PAYLOAD` and `..._LIMIT` ask for, or None: no trace."""
    file = FILE.get()
    return None if file is None else DriverTrace(file.absolute(), PAYLOAD.get(), LIMIT.get())


def driver_trace_environment(asked: DriverTrace) -> dict[str, str]:
    """The variables by which a process that is started traces its driver as `asked`."""
    return {
        FILE.variable: str(asked.file),
        PAYLOAD.variable: str(int(asked.payload)),
        LIMIT.variable: str(asked.limit or 0),
    }
