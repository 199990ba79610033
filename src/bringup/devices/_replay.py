"""Makes the calls of a trace on a driver, in a process without torch: `python -m` runs one.

One thread makes them in the order in which they began, with this driver's addresses and handles.
Statuses are compared, and bytes that copies brought to the host where the trace says them.
"""

from __future__ import annotations

import ctypes as c
import hashlib
import json
import mmap
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bringup.devices import _driver_abi as abi
from bringup.devices._replay_launch import Launches
from bringup.devices._replay_memory import Content, Memory
from bringup.devices._trace import Call, Trace, read_trace
from bringup.errors import DriverError

PROGRESS = struct.Struct("=qq")  # the number of the call, and 1 while the driver runs
_HOST_TO_DEVICE, _DEVICE_TO_HOST, _DEVICE_TO_DEVICE = 1, 2, 3
_UNFINISHED = (abi.Status.NOT_READY, abi.Status.TIMEOUT)
# What only asks: another driver may do without, and its answers are its own.
_QUESTIONS = frozenset({
    "device_count", "device_props", "error_detail", "host_view", "mem_info", "pointer_info",
    "profiler_read", "profiler_start", "profiler_stop", "stream_capture_query",
})  # fmt: skip
_OF_A_DEVICE = _QUESTIONS | {"device_synchronize", "stream_query", "stream_synchronize"}
_POLLED = frozenset({"event_query", "stream_query", "stream_wait_for", "event_wait_for"})
# The kind of a handle, by the name of its parameter.
_HANDLES = {
    "stream": "stream", "event": "event", "start": "event", "end": "event", "graph": "graph",
    "first": "graph", "second": "graph", "module": "module", "fn": "function",
}  # fmt: skip


class Difference(Exception):
    """A call that did not answer as recorded."""

    def __init__(self, expected: str, got: str, words: str = "") -> None:
        super().__init__(expected, got)
        self.found = {"expected": expected, "got": got, "words": words}


class _NotLive(Exception):
    """A handle or an address that stands for nothing here."""


class _Rows(NamedTuple):
    """`height` rows of `width` bytes, `pitch` bytes apart."""

    width: int
    height: int
    pitch: int

    @property
    def extent(self) -> int:
        return (self.height - 1) * self.pitch + self.width if self.height > 0 else 0

    def at(self, address: int) -> list[int]:
        """Return where each row begins."""
        return [address + row * self.pitch for row in range(self.height)]


@dataclass
class _Copy:
    """A copy between host and device that is not known to be done."""

    number: int
    host: int
    rows: _Rows
    kept: Any  # memory, where `host` is no memory of the trace
    doubt: str = ""  # why nothing is known of the bytes that it brings

    def content(self) -> bytes:
        return b"".join(c.string_at(row, self.rows.width) for row in self.rows.at(self.host))


class Replay:
    """One replay of a trace; `progress`: memory that gets each call first; `timeout`: seconds."""

    def __init__(
        self, trace: Trace, table: abi.Table, progress: memoryview | mmap.mmap, timeout: float
    ) -> None:
        self._trace = trace
        self._functions = {
            name: table.function(name) for name in abi.FUNCTIONS if name != "capabilities"
        }
        self._progress, self._timeout = progress, timeout
        self._memory = Memory()
        self._host_memory = Memory()
        self._handles: dict[tuple[str, int], int | None] = {}
        self._copies: dict[int, _Copy] = {}
        self._launches = Launches(self._memory, self._handles)
        self._kept: list[Any] = []
        self._captured: set[int] = set()  # streams, of the trace
        self._devices: int | None = None
        self._compared = 0
        self._made = 0
        self._not_compared: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()

    # --- the way of one call

    def run(self) -> dict[str, Any]:
        """Make the calls; return what was found, as JSON holds it."""
        difference = None
        for call in self._trace.calls:
            try:
                self._make(call)
            except Difference as error:
                difference = {"call": call.number, **error.found}
                break
            except (AttributeError, KeyError, TypeError, ValueError, c.ArgumentError) as error:
                raise DriverError(
                    f"{self._trace.file}: call {call} cannot be made: {error!r}"
                ) from error
        self._tell(0, running=False)
        return {
            "made": self._made,
            "compared_copies": self._compared,
            "not_compared": self._not_compared,
            "left_out": self._left_out,
            "difference": difference,
        }

    def _make(self, call: Call) -> None:
        if (reason := self._reason_to_leave_out(call)) is not None:
            self._left_out[reason] += 1
            return
        function = self._functions.get(call.function)
        if function is None:
            raise Difference("a function", "the driver has none of that name")
        outputs: dict[str, Any] = {}
        try:
            arguments = self._arguments(call, outputs)
        except _NotLive as error:
            if call.was_accepted:
                raise Difference("handles and memory that are live", str(error)) from None
            self._left_out["refused calls on what was not live"] += 1
            return
        if call.status == abi.Status.OK:
            self._note_memory(call)
        status = self._wait(call, function, arguments)
        self._made += 1
        self._note_capture(call)
        self._compare(call, status)
        if status == abi.Status.OK:
            self._take_outputs(call, outputs)
            for done in call.done:
                self._settle(done)

    def _reason_to_leave_out(self, call: Call) -> str | None:
        if call.function in {"host_view", "ipc_export"}:  # what others do there is in no trace
            if (found := self._memory.find(call.arguments["address"])) is not None:
                found.is_shared = True
            return call.function
        if call.function in {"ipc_open", "ipc_close"}:
            return f"{call.function}, of another process's memory"
        if call.function == "native_handle":
            return "native_handle, whose objects are the runtime's own"
        if abi.CAPABILITIES.get(call.function) == abi.COLLECTIVES:
            return "collectives, which need the other ranks"
        if call.status in _UNFINISHED:
            return "queries and waits that were not over"
        if call.function in _QUESTIONS and self._functions.get(call.function) is None:
            return f"the driver has no {call.function}"
        if call.function in _OF_A_DEVICE and self._devices is not None:
            device = call.arguments.get("device", 0)
            if device >= self._devices:
                return f"questions to device {device}, which the driver has not"
        return self._launches.reason_to_leave_out(call)

    def _wait(self, call: Call, function: Any, arguments: list[Any]) -> int:
        """Call; wait for what was over when the trace was made."""
        end = time.monotonic() + self._timeout
        while True:
            self._tell(call.number, running=True)
            status = int(function(*arguments))
            self._tell(call.number, running=False)
            is_over = status not in _UNFINISHED or call.function not in _POLLED
            if is_over or call.status is None:
                return status
            if time.monotonic() > end:
                raise Difference("BRINGUP_OK", f"not done after {self._timeout:g} s")
            time.sleep(0.0002)

    def _tell(self, number: int, *, running: bool) -> None:
        self._progress[: PROGRESS.size] = PROGRESS.pack(number, running)

    def _compare(self, call: Call, status: int) -> None:
        if status == call.status:
            return
        expected = "the call had not returned" if call.status is None else _name(call.status)
        last_error = self._functions.get("last_error")
        words = last_error() if last_error is not None else None
        said = "" if words is None else words.decode(errors="replace")
        raise Difference(expected, _name(status), said)

    # --- arguments

    def _arguments(self, call: Call, outputs: dict[str, Any]) -> list[Any]:
        """Return numbers as they are, handles and addresses of here, places for outputs."""
        special = _SPECIAL.get(call.function)
        known = {} if special is None else special(self, call)
        arguments: list[Any] = []
        for name, kind in abi.FUNCTIONS[call.function].items():
            value = call.arguments.get(name)
            if name in known:
                arguments.append(known[name])
            elif value is None:
                place = kind._type_()
                if hasattr(place, "struct_size"):
                    place.struct_size = c.sizeof(place)
                outputs[name] = place
                arguments.append(c.byref(place))
            elif kind is c.c_char_p:
                arguments.append(value.encode(errors="surrogateescape"))
            elif kind is c.c_void_p:
                arguments.append(self._here(call, name))
            elif name == "launch":
                arguments.append(c.byref(self._launches.structure(call)))
            else:
                arguments.append(value)
        return arguments

    def _here(self, call: Call, name: str) -> int | None:
        """Return what stands for an address or a handle of the trace."""
        value = call.arguments[name]
        if value == 0:
            return None
        if name in _HANDLES:
            kind = _HANDLES[name]
            if (kind, value) not in self._handles:
                raise _NotLive(f"{name}={value:#x} is no {kind} that a call before gave")
            return self._handles[kind, value]
        place = None if call.function.startswith("host_") else self._memory.place(value)
        place = place or self._host_memory.place(value)
        if place is None and call.function == "pointer_info":
            return int(value)
        if place is None:
            raise _NotLive(f"{name}={value:#x} lies in no memory that a call before gave")
        return place

    def _take_outputs(self, call: Call, outputs: dict[str, Any]) -> None:
        if call.function == "device_count":
            self._devices = outputs["count"].value
        for name, place in outputs.items():
            if not isinstance(place, c.c_void_p) or name not in call.outputs:
                continue
            if not place.value:
                raise Difference(f"{name} that is not NULL", "NULL")
            if name in _HANDLES:
                self._handles[_HANDLES[name], call.outputs[name]] = place.value
            elif call.function in {"mem_alloc", "host_alloc"}:
                memory = self._memory if call.function == "mem_alloc" else self._host_memory
                memory.add(call.outputs[name], place.value, call.arguments["bytes"])

    def _note_capture(self, call: Call) -> None:
        stream: Any = call.arguments.get("stream")
        if call.function in {"stream_capture_end", "stream_capture_abort"}:
            self._captured.discard(stream)
        elif call.function == "stream_capture_begin" and call.was_accepted:
            self._captured.add(stream)

    def _note_memory(self, call: Call) -> None:
        """Note what a call that succeeds does to memory."""
        given = call.arguments
        captured = given.get("stream") in self._captured  # it is not known when it runs
        filled = Content.UNKNOWN if captured else Content.KNOWN
        if call.function == "mem_free":
            self._memory.remove(given["address"])
        elif call.function in {"host_free", "host_unregister"}:
            self._host_memory.remove(given["address"])
        elif call.function == "fill_async":
            self._memory.write(given["dst"], given["bytes"], filled)
        elif call.function == "fill_wide_async":
            self._memory.write(given["dst"], given["size"] * given["count"], filled)

    # --- arguments that are not as they were, by the name of the parameter

    def _host_memory_of(self, call: Call) -> dict[str, Any]:
        size = call.arguments["bytes"]
        place = self._keep(size)
        self._host_memory.add(call.arguments["address"], place, size)
        return {"address": place}

    def _pattern_of(self, call: Call) -> dict[str, Any]:
        return {"pattern": bytes.fromhex(call.facts.get("pattern_bytes", ""))}

    def _module_of(self, call: Call) -> dict[str, Any]:
        return {"data": self._trace.payload(call.facts, call.arguments["bytes"]) or b""}

    def _host_function_of(self, call: Call) -> dict[str, Any]:
        return {"fn": self._launches.nothing, "user": None}

    def _records_of(self, call: Call) -> dict[str, Any]:
        records = (abi.Record * max(1, call.arguments["capacity"]))()
        for record in records:
            record.struct_size = c.sizeof(record)
        return {"records": records}

    def _ends_of_graph_copy(self, call: Call) -> dict[str, Any]:
        """Return the ends of a graph's copy; the host's is memory that stays, without its bytes."""
        given = call.arguments
        self._memory.write(given["dst"], given["bytes"], Content.UNKNOWN)
        if given["kind"] == _DEVICE_TO_DEVICE:
            return {}
        side = "dst" if given["kind"] == _DEVICE_TO_HOST else "src"
        return {side: self._anywhere(given[side], given["bytes"])}

    def _ends_of_copy(self, call: Call) -> dict[str, Any]:
        given = call.arguments
        to, source = _rows(given, "dst_pitch"), _rows(given, "src_pitch")
        if not call.was_accepted:  # whatever its bytes are
            return {
                "dst": self._anywhere(given["dst"], to.extent),
                "src": self._anywhere(given["src"], source.extent),
            }
        if given["stream"] in self._captured:
            return self._ends_of_captured_copy(given, to, source)
        if given["kind"] == _HOST_TO_DEVICE:
            copy = self._new_copy(call, given["src"], source)
            content = Content.KNOWN if self._bring(call, copy) else Content.UNKNOWN
            for row in to.at(given["dst"]):
                self._memory.write(row, to.width, content)
            return {"src": copy.host}
        if given["kind"] == _DEVICE_TO_HOST:
            copy = self._new_copy(call, given["dst"], to)
            rows = source.at(given["src"])
            contents = [self._memory.content(row, source.width) for row in rows]
            copy.doubt = next((x.value for x in contents if x is not Content.KNOWN), "")
            return {"dst": copy.host}
        for row, start in zip(to.at(given["dst"]), source.at(given["src"]), strict=True):
            self._memory.copy(row, start, to.width)
        return {}

    def _ends_of_captured_copy(
        self, given: dict[str, Any], to: _Rows, source: _Rows
    ) -> dict[str, Any]:
        """Return the host's end: memory that stays, as the graph may read it whenever it runs."""
        for row in to.at(given["dst"]):
            self._memory.write(row, to.width, Content.UNKNOWN)
        if given["kind"] == _DEVICE_TO_DEVICE:
            return {}
        side, rows = ("dst", to) if given["kind"] == _DEVICE_TO_HOST else ("src", source)
        return {side: self._anywhere(given[side], rows.extent)}

    def _bring(self, call: Call, copy: _Copy) -> bool:
        """Put the bytes that were copied where a copy finds them; whether the trace has them."""
        width = copy.rows.width
        content = self._trace.payload(call.facts, width * copy.rows.height)
        if content is None:
            return False
        for row, place in enumerate(copy.rows.at(copy.host)):
            c.memmove(place, content[row * width : (row + 1) * width], width)
        return True

    def _anywhere(self, address: int, size: int) -> int | None:
        """Return an end of a copy without known bytes: where it was, or memory that stays."""
        if address == 0:
            return None
        place = self._memory.place(address) or self._host_memory.place(address)
        return self._keep(size) if place is None else place

    def _keep(self, size: int) -> int:
        self._kept.append(c.create_string_buffer(max(1, size)))
        return c.addressof(self._kept[-1])

    def _new_copy(self, call: Call, address: int, rows: _Rows) -> _Copy:
        place = self._host_memory.place(address, rows.extent)
        memory = None
        if place is None:
            memory = c.create_string_buffer(rows.extent or 1)
            place = c.addressof(memory)
        copy = self._copies[call.number] = _Copy(call.number, place, rows, memory)
        return copy

    def _settle(self, done: dict[str, Any]) -> None:
        """Compare what a copy brought that was done by now in the trace."""
        copy = self._copies.pop(done["copy"], None)
        if copy is None or "sha256" not in done:
            if done.get("overwritten"):
                self._not_compared["overwritten before it was read"] += 1
            return
        if copy.doubt:
            self._not_compared[f"from memory that is {copy.doubt}"] += 1
            return
        self._compared += 1
        content = copy.content()
        got = hashlib.sha256(content).hexdigest()
        if got == done["sha256"]:
            return
        expected = self._trace.payload(done, len(content))
        what = f"the bytes of copy #{copy.number} ({len(content)} bytes) with digest "
        raise Difference(
            what + done["sha256"][:16], got[:16] + _first_difference(expected, content)
        )


_SPECIAL: dict[str, Callable[[Replay, Call], dict[str, Any]]] = {
    "copy_async": Replay._ends_of_copy, "copy_2d_async": Replay._ends_of_copy,
    "fill_wide_async": Replay._pattern_of, "graph_add_copy": Replay._ends_of_graph_copy,
    "graph_add_host_func": Replay._host_function_of, "host_func": Replay._host_function_of,
    "host_register": Replay._host_memory_of, "module_load_data": Replay._module_of,
    "profiler_read": Replay._records_of,
}  # fmt: skip


def _rows(given: dict[str, Any], pitch: str) -> _Rows:
    if pitch in given:
        return _Rows(given["width"], given["height"], given[pitch])
    return _Rows(given["bytes"], 1, given["bytes"])


def _name(status: int) -> str:
    if status not in list(abi.Status):
        return f"the status {status}, which there is not"
    return f"BRINGUP_{abi.Status(status).name}"


def _first_difference(expected: bytes | None, got: bytes) -> str:
    if expected is None:
        return " (the trace has no payload to compare with)"
    pairs = enumerate(zip(expected, got, strict=True))
    at = next(index for index, (wanted, found) in pairs if wanted != found)
    return (
        f"; the first byte that differs is {at}: expected {expected[at : at + 8].hex()}, "
        f"got {got[at : at + 8].hex()}"
    )


def main() -> None:
    """Arguments: the trace, the library, the file for the result, that for progress, seconds."""
    trace, library, result, progress, timeout = sys.argv[1:]
    with Path(progress).open("r+b") as file, mmap.mmap(file.fileno(), PROGRESS.size) as told:
        try:
            table = abi.open_table(Path(library))
            found = Replay(read_trace(Path(trace)), table, told, float(timeout)).run()
        except DriverError as error:
            found = {"error": str(error)}
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
