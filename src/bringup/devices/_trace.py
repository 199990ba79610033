"""Reading a trace of a driver's calls (docs/devices/trace.md describes the format)."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bringup.errors import DriverError

_FORMAT = 1
_TEXTS = frozenset({"arch", "driver_version", "kernel", "library", "name", "string", "text"})
_OF_EVERY_CALL = frozenset({"call", "at", "thread", "function", "arguments"})
# What these give may be what another thread gave back after they had begun: they stand where they
# ended.
_GIVING = frozenset({
    "mem_alloc", "host_alloc", "stream_create", "event_create", "graph_create", "module_load",
    "module_load_data", "get_function",
})  # fmt: skip
_ADDRESS = re.compile(r"0x[0-9a-f]+")


@dataclass
class Call:
    """One call of the driver."""

    number: int  # calls are counted from 1, as they began
    function: str
    thread: int
    arguments: dict[str, Any]  # by the names of bringup/driver.h; addresses and handles as integers
    facts: dict[str, Any]  # what else was known before the call: digests, where bytes are kept
    status: int | None = None  # what it returned; None: it had not returned when the trace ended
    took: int = 0
    outputs: dict[str, Any] = field(default_factory=dict)  # what it wrote, likewise
    # Copies that were known to be done once it returned, with digests.
    done: list[dict[str, Any]] = field(default_factory=list)

    @property
    def was_accepted(self) -> bool:
        """Return whether it succeeded, or had not returned when the trace ended."""
        return not self.status

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={_shown(value)}" for name, value in self.arguments.items())
        outputs = ", ".join(f"{name}={_shown(value)}" for name, value in self.outputs.items())
        answer = "did not return" if self.status is None else f"status {self.status}"
        told = f" {outputs}" if outputs else ""
        return f"#{self.number} {self.function}({arguments}) -> {answer}{told}"


@dataclass
class Trace:
    """A whole trace."""

    file: Path  # where it was read from
    header: dict[str, Any]  # its first line
    calls: list[Call]  # in an order in which one thread can make them
    end: str  # how it ended, where that is not simply the end of the process: cut, over its limit

    def payload(self, facts: dict[str, Any], size: int) -> bytes | None:
        """Return what a call or a finished copy kept, or None. Raises `DriverError` if missing."""
        if "payload" not in facts:
            return None
        path = Path(f"{self.file}.payload")
        try:
            with path.open("rb") as file:
                file.seek(facts["payload"])
                found = file.read(size)
        except OSError as error:
            raise DriverError(f"{path} cannot be read: {error.strerror or error}") from None
        if hashlib.sha256(found).hexdigest() != facts["sha256"]:
            raise DriverError(
                f"{path} does not belong to this trace: the {size} bytes at {facts['payload']} "
                "have another digest"
            )
        return found


def read_trace(file: Path) -> Trace:
    """Read a trace; a cut last line is left out and told. Raises `DriverError` with the line."""
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise DriverError(f"the trace {file} cannot be read: {error.strerror or error}") from None
    cut = lines.pop() != b""  # every line ends with a newline
    try:
        header = json.loads(lines[0]) if lines else {}
    except ValueError:
        header = {}
    if not isinstance(header, dict) or header.get("bringup_driver_trace") != _FORMAT:
        raise DriverError(
            f"{file} is no trace of a driver: expected a first line with "
            f'"bringup_driver_trace":{_FORMAT}'
        )
    calls: dict[int, Call] = {}
    order: dict[int, int] = {}
    end = ""
    for number, line in enumerate(lines[1:], start=2):
        try:
            record = json.loads(line)
            end = record.get("end", end)
            if "call" in record:
                call = _take(calls, record)
                if "function" in record or call.function in _GIVING:
                    order[call.number] = number
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DriverError(f"{file}:{number} is no line of a trace: {error!r}") from None
    if cut:
        end = "its last line is cut: the process ended while it was written"
    elif end == "limit":
        end = "it had reached BRINGUP_DRIVER_TRACE_LIMIT"
    return Trace(file, header, sorted(calls.values(), key=lambda x: order[x.number]), end)


def _take(calls: dict[int, Call], record: dict[str, Any]) -> Call:
    number = record["call"]
    if "function" in record:
        facts = {name: value for name, value in record.items() if name not in _OF_EVERY_CALL}
        arguments = _numbers(record["arguments"])
        call = Call(number, record["function"], record["thread"], arguments, facts)
        calls[number] = call
        return call
    call = calls[number]
    call.status = record["status"]
    call.took = record["took"]
    call.outputs = _numbers(record.get("outputs", {}))
    call.done = record.get("done", [])
    return call


def _numbers(value: Any) -> Any:
    """Addresses, which are written as text, as integers; bytes of text as they were."""
    if isinstance(value, dict):
        return {
            name: _decoded(part) if name in _TEXTS and isinstance(part, str) else _numbers(part)
            for name, part in value.items()
        }
    if isinstance(value, list):
        return [_numbers(part) for part in value]
    if isinstance(value, str) and _ADDRESS.fullmatch(value):
        return _Address(value, 16)
    return value


class _Address(int):
    """An address or a handle, which is shown as such."""


def _decoded(text: str) -> str:
    return text.encode("latin-1").decode("utf-8", "surrogateescape")


def _shown(value: Any) -> str:
    if isinstance(value, _Address):
        return hex(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_shown(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_shown(part) for part in value) + "]"
    return repr(value)


def file_sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
