"""Makes the calls of a trace on a driver, in a process that has no torch: `python -m` runs one.

Calls are made by one thread, in the order in which they began. Addresses and handles are those that
this driver gives. Statuses are compared, and the bytes that copies brought to the host wherever the
trace says what they must be.
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
from pathlib import Path
from typing import Any

from bringup.devices import _driver_abi as abi
from bringup.devices._replay_launch import Launches
from bringup.devices._replay_memory import Content, Memory
from bringup.devices._trace import Call, Trace, read_trace
from bringup.errors import DriverError

__all__ = ["PROGRESS", "Replay"]

PROGRESS = struct.Struct("=qq")  # the number of the call, and 1 while the driver runs
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2
_OK, _NOT_READY, _TIMEOUT = 0, 3, 8
# What only asks: another driver may do without, and its answers are its own.
_QUESTIONS = frozenset({
    "device_count", "device_props", "error_detail", "host_view", "mem_info", "pointer_info",
    "profiler_read", "profiler_start", "profiler_stop",
})  # fmt: skip
_OF_A_DEVICE = _QUESTIONS | {"device_synchronize", "stream_query", "stream_synchronize"}
_POLLED = frozenset({"event_query", "stream_query", "stream_wait_for", "event_wait_for"})


class Difference(Exception):
    """A call that did not answer as recorded."""

    def __init__(self, expected: str, got: str, words: str = "") -> None:
        super().__init__(expected, got)
        self.expected, self.got, self.words = expected, got, words


class _NotLive(Exception):
    """A handle or an address that stands for nothing here."""


class _Copy:
    """A copy between host and device that is not known to be done."""

    def __init__(self, call: Call, host: int, kept: Any, rows: tuple[int, int, int]) -> None:
        self.call, self.host, self.kept, self.rows = call, host, kept, rows
        self.doubt = ""  # why nothing is known of the bytes that it brings

    def content(self) -> bytes:
        """What the host's side holds."""
        width, height, pitch = self.rows
        return b"".join(c.string_at(self.host + row * pitch, width) for row in range(height))


class Replay:
    """One replay of a trace.

    Args:
        trace: the calls.
        table: the driver's functions.
        progress: memory that is told each call before it is made, see `PROGRESS`.
        timeout: seconds that work may take to be done when the trace says that it was.
    """

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
        self._devices: int | None = None
        self.compared = 0
        self.made = 0
        self.not_compared: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()

    # --- the way of one call

    def run(self) -> dict[str, Any]:
        """Makes the calls; what was found, as JSON holds it."""
        difference = None
        for index, call in enumerate(self._trace.calls):
            try:
                self._make(call)
            except Difference as found:
                before = [str(earlier) for earlier in self._trace.calls[max(0, index - 8) : index]]
                difference = {
                    "call": call.number,
                    "function": call.function,
                    "text": str(call),
                    "expected": found.expected,
                    "got": found.got,
                    "words": found.words,
                    "before": before,
                }
                break
        self._tell(0, running=False)
        return {
            "calls": len(self._trace.calls),
            "made": self.made,
            "compared_copies": self.compared,
            "not_compared": dict(self.not_compared),
            "left_out": dict(self.left_out),
            "difference": difference,
        }

    def _make(self, call: Call) -> None:
        if (reason := self._reason_to_leave_out(call)) is not None:
            self.left_out[reason] += 1
            return
        function = self._functions.get(call.function)
        if function is None:
            raise Difference("a function", "the driver has none of that name")
        outputs: dict[str, Any] = {}
        prepare = getattr(self, f"_{call.function}", None)
        try:
            arguments = self._plain(call, outputs) if prepare is None else prepare(call, outputs)
        except _NotLive as error:
            if call.status in (_OK, None):
                raise Difference("handles and memory that are live", str(error)) from None
            self.left_out["refused calls on what was not live"] += 1
            return
        status = self._wait(call, function, arguments)
        self.made += 1
        self._compare(call, status)
        if status == _OK:
            self._take_outputs(call, outputs)
            for done in call.done:
                self._settle(done)

    def _reason_to_leave_out(self, call: Call) -> str | None:
        if call.status in (_NOT_READY, _TIMEOUT):
            return "queries and waits that were not over"
        if call.function in _QUESTIONS and self._functions.get(call.function) is None:
            return f"the driver has no {call.function}"
        if call.function in _OF_A_DEVICE and self._devices is not None:
            device = call.arguments.get("device", 0)
            if device >= self._devices:
                return f"questions to device {device}, which the driver has not"
        if call.function == "host_view":  # what it tells is no business of a replay's
            self._share(call)
            return "host_view"
        return self._launches.reason_to_leave_out(call)

    def _wait(self, call: Call, function: Any, arguments: list[Any]) -> int:
        """Calls; what was over when the trace was made is waited for."""
        end = time.monotonic() + self._timeout
        while True:
            self._tell(call.number, running=True)
            status = int(function(*arguments))
            self._tell(call.number, running=False)
            is_over = status not in (_NOT_READY, _TIMEOUT) or call.function not in _POLLED
            if is_over or call.status is None:
                return status
            if time.monotonic() > end:
                raise Difference("BRINGUP_OK", f"not done after {self._timeout:g} s")
            time.sleep(0.0002)

    def _tell(self, number: int, *, running: bool) -> None:
        self._progress[: PROGRESS.size] = PROGRESS.pack(number, running)

    def _compare(self, call: Call, status: int) -> None:
        if call.status is None:
            raise Difference("the call had not returned", _name(status), self._words())
        if status != call.status:
            raise Difference(_name(call.status), _name(status), self._words())

    def _words(self) -> str:
        function = self._functions.get("last_error")
        words = function() if function is not None else None
        return "" if words is None else words.decode(errors="replace")

    # --- arguments

    def _plain(self, call: Call, outputs: dict[str, Any]) -> list[Any]:
        """Numbers as they are, handles and addresses as they are here, outputs as places."""
        arguments: list[Any] = []
        for name, kind in abi.FUNCTIONS[call.function].items():
            value = call.arguments.get(name)
            if value is None:
                place = kind._type_()
                if hasattr(place, "struct_size"):
                    place.struct_size = c.sizeof(place)
                outputs[name] = place
                arguments.append(c.byref(place))
            elif kind is c.c_char_p:
                arguments.append(value.encode(errors="surrogateescape"))
            elif kind is c.c_void_p:
                arguments.append(self._here(call, name, value))
            elif name == "launch":
                arguments.append(c.byref(self._launches.structure(call)))
            else:
                arguments.append(value)
        return arguments

    def _here(self, call: Call, name: str, value: int) -> int | None:
        """What stands for an address or a handle of the trace."""
        if value == 0:
            return None
        if name in _HANDLES:
            kind = _HANDLES[name]
            if (kind, value) not in self._handles:
                raise _NotLive(f"{name}={value:#x} is no {kind} that a call before gave")
            return self._handles[kind, value]
        if call.function.startswith("host_"):
            place = self._host_memory.place(value)
        else:
            place = self._memory.place(value) or self._host_memory.place(value)
        if place is None and call.function == "pointer_info":
            return value
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
                raise Difference(f"{name} that is not NULL", "NULL", "")
            if name in _HANDLES:
                self._handles[_HANDLES[name], call.outputs[name]] = place.value
            elif call.function == "mem_alloc":
                self._memory.add(call.outputs[name], place.value, call.arguments["bytes"])
            elif call.function == "host_alloc":
                self._host_memory.add(call.outputs[name], place.value, call.arguments["bytes"])

    # --- functions with more to them

    def _mem_free(self, call: Call, outputs: dict[str, Any]) -> list[Any]:
        arguments = self._plain(call, outputs)
        if call.status == _OK:
            self._memory.remove(call.arguments["address"])
        return arguments

    def _host_free(self, call: Call, outputs: dict[str, Any]) -> list[Any]:
        arguments = self._plain(call, outputs)
        if call.status == _OK:
            self._host_memory.remove(call.arguments["address"])
        return arguments

    def _host_register(self, call: Call, outputs: dict[str, Any]) -> list[Any]:
        size = call.arguments["bytes"]
        memory = c.create_string_buffer(max(1, size))
        self._kept.append(memory)
        self._host_memory.add(call.arguments["address"], c.addressof(memory), size)
        return [c.addressof(memory), size]

    def _host_unregister(self, call: Call, outputs: dict[str, Any]) -> list[Any]:
        return self._host_free(call, outputs)

    def _share(self, call: Call) -> None:
        if (found := self._memory.find(call.arguments["address"])) is not None:
            found.is_shared = True

    def _fill_async(self, call: Call, outputs: dict[str, Any]) -> list[Any]:
        arguments = self._plain(call, outputs)
        if call.status == _OK:
            self._memory.write(call.arguments["dst"], call.arguments["bytes"], Content.KNOWN)
        return arguments

    def _fill_wide_async(self, call: Call, outputs: dict[str, Any]) -> list[Any]:
        given = call.arguments
        place = self._here(call, "dst", given["dst"])
        pattern = bytes.fromhex(call.facts.get("pattern_bytes", ""))
        if call.status == _OK:
            self._memory.write(given["dst"], given["size"] * given["count"], Content.KNOWN)
        stream = self._here(call, "stream", given["stream"])
        return [given["device"], place, pattern, given["size"], given["count"], stream]

    def _copy_async(self, call: Call, outputs: dict[str, Any]) -> list[Any]:
        given = call.arguments
        size = given["bytes"]
        target, source = self._ends_of_copy(call, (size, 1, size), (size, 1, size))
        stream = self._here(call, "stream", given["stream"])
        return [
            given["kind"], given["dst_device"], target, given["src_device"], source, size, stream,
        ]  # fmt: skip

    def _copy_2d_async(self, call: Call, outputs: dict[str, Any]) -> list[Any]:
        given = call.arguments
        width, height = given["width"], given["height"]
        target, source = self._ends_of_copy(
            call, (width, height, given["dst_pitch"]), (width, height, given["src_pitch"])
        )
        stream = self._here(call, "stream", given["stream"])
        return [
            given["kind"], given["dst_device"], target, given["dst_pitch"], given["src_device"],
            source, given["src_pitch"], width, height, stream,
        ]  # fmt: skip

    def _ends_of_copy(
        self, call: Call, target_rows: tuple[int, int, int], source_rows: tuple[int, int, int]
    ) -> tuple[int | None, int | None]:
        """Where a copy goes to and comes from; rows are (width, height, pitch)."""
        given = call.arguments
        if call.status != _OK and call.status is not None:  # refused, whatever its bytes are
            return (
                self._anywhere(given["dst"], target_rows),
                self._anywhere(given["src"], source_rows),
            )
        if given["kind"] == _HOST_TO_DEVICE:
            host, known = self._source(call, source_rows)
            self._write_rows(given["dst"], target_rows, Content.KNOWN if known else Content.UNKNOWN)
            return self._here(call, "dst", given["dst"]), host
        if given["kind"] == _DEVICE_TO_HOST:
            copy = self._new_copy(call, given["dst"], target_rows)
            spans = _spans(given["src"], source_rows)
            contents = [self._memory.content(at, size) for at, size in spans]
            copy.doubt = next((x.value for x in contents if x is not Content.KNOWN), "")
            return copy.host, self._here(call, "src", given["src"])
        for (to, size), (start, _) in zip(
            _spans(given["dst"], target_rows), _spans(given["src"], source_rows), strict=True
        ):
            self._memory.copy(to, start, size)
        return self._here(call, "dst", given["dst"]), self._here(call, "src", given["src"])

    def _anywhere(self, address: int, rows: tuple[int, int, int]) -> int | None:
        """The end of a copy that was refused: device memory where it was that, else host memory."""
        if address == 0:
            return None
        place = self._memory.place(address) or self._host_memory.place(address)
        if place is None:
            memory = c.create_string_buffer(_extent(rows) or 1)
            self._kept.append(memory)
            place = c.addressof(memory)
        return place

    def _source(self, call: Call, rows: tuple[int, int, int]) -> tuple[int, bool]:
        """Host memory with the bytes that were copied; whether they are those of the trace."""
        width, height, pitch = rows
        copy = self._new_copy(call, call.arguments["src"], rows)
        content = self._trace.payload(call.facts, width * height)
        if content is None:
            return copy.host, False
        for row in range(height):
            c.memmove(copy.host + row * pitch, content[row * width : (row + 1) * width], width)
        return copy.host, True

    def _new_copy(self, call: Call, address: int, rows: tuple[int, int, int]) -> _Copy:
        place = self._host_memory.place(address, _extent(rows))
        memory = None
        if place is None:
            memory = c.create_string_buffer(_extent(rows) or 1)
            place = c.addressof(memory)
        copy = self._copies[call.number] = _Copy(call, place, memory, rows)
        return copy

    def _write_rows(self, address: int, rows: tuple[int, int, int], content: Content) -> None:
        for at, size in _spans(address, rows):
            self._memory.write(at, size, content)

    def _settle(self, done: dict[str, Any]) -> None:
        """A copy that was done by now when the trace was made; compares what it brought."""
        copy = self._copies.pop(done["copy"], None)
        if copy is None or "sha256" not in done:
            if done.get("overwritten"):
                self.not_compared["overwritten before it was read"] += 1
            return
        if copy.doubt:
            self.not_compared[f"from memory that is {copy.doubt}"] += 1
            return
        self.compared += 1
        content = copy.content()
        got = hashlib.sha256(content).hexdigest()
        if got == done["sha256"]:
            return
        expected = self._trace.payload(done, len(content))
        what = f"the bytes of copy #{copy.call.number} ({len(content)} bytes) with digest "
        raise Difference(
            what + done["sha256"][:16], got[:16] + _first_difference(expected, content)
        )

    def _module_load_data(self, call: Call, outputs: dict[str, Any]) -> list[Any]:
        given = call.arguments
        content = self._trace.payload(call.facts, given["bytes"]) or b""
        outputs["module"] = place = c.c_void_p()
        return [given["device"], content, given["bytes"], c.byref(place)]

    def _host_func(self, call: Call, outputs: dict[str, Any]) -> list[Any]:
        stream = self._here(call, "stream", call.arguments["stream"])
        return [call.arguments["device"], stream, self._launches.nothing, None]

    def _graph_add_host_func(self, call: Call, outputs: dict[str, Any]) -> list[Any]:
        return [self._here(call, "graph", call.arguments["graph"]), self._launches.nothing, None]

    def _graph_add_copy(self, call: Call, outputs: dict[str, Any]) -> list[Any]:
        """The host's side of a graph's copy is memory that stays; its bytes are not recorded."""
        given = call.arguments
        size = given["bytes"]
        places = {}
        for name, side in (("dst", _DEVICE_TO_HOST), ("src", _HOST_TO_DEVICE)):
            if given["kind"] == side:
                places[name] = self._anywhere(given[name], (size, 1, size))
            else:
                places[name] = self._here(call, name, given[name])
        self._memory.write(given["dst"], size, Content.UNKNOWN)
        graph = self._here(call, "graph", given["graph"])
        return [graph, given["kind"], places["dst"], places["src"], size]

    def _profiler_read(self, call: Call, outputs: dict[str, Any]) -> list[Any]:
        capacity = call.arguments["capacity"]
        records = (abi.Record * max(1, capacity))()
        for record in records:
            record.struct_size = c.sizeof(record)
        return [
            call.arguments["device"], records, capacity, c.byref(c.c_int32()),
            c.byref(c.c_uint64()),
        ]  # fmt: skip


# The kind of a handle, by the name of its parameter.
_HANDLES = {
    "stream": "stream",
    "event": "event",
    "start": "event",
    "end": "event",
    "graph": "graph",
    "module": "module",
    "fn": "function",
}


def _name(status: int) -> str:
    if status not in list(abi.Status):
        return f"the status {status}, which there is not"
    return f"BRINGUP_{abi.Status(status).name}"


def _extent(rows: tuple[int, int, int]) -> int:
    width, height, pitch = rows
    return (height - 1) * pitch + width if height > 0 else 0


def _spans(address: int, rows: tuple[int, int, int]) -> list[tuple[int, int]]:
    """The bytes of the rows; as one where nothing lies between them."""
    width, height, pitch = rows
    if pitch == width:
        return [(address, width * height)]
    return [(address + row * pitch, width) for row in range(height)]


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
            replay = Replay(
                read_trace(Path(trace)), abi.open_table(Path(library)), told, float(timeout)
            )
            found = replay.run()
        except DriverError as error:
            found = {"error": str(error)}
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
