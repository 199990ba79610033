"""Replaying a trace in a process of its own, which may crash or hang."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup.devices._driver_discovery import driver_library
from bringup.devices._replay import PROGRESS
from bringup.devices._trace import Call, Trace, read_trace
from bringup.errors import DriverError

_BEFORE = 8  # calls that are shown before the one that differs
SLACK = 5.0  # seconds that the process may take beyond the limit of a call, to say so itself


@dataclass(frozen=True)
class ReplayDifference:
    """The first call that did not do what it did when the trace was made.

    Attributes:
        call: its number in the trace; 0: none, the process ended before or after the calls.
        function: of the driver's table.
        text: the call with its arguments and its answer, as recorded.
        expected: what it should have answered, e.g. "BRINGUP_OK".
        got: what came instead: another status, other bytes, a crash, no return.
        words: the driver's last_error, or "".
        before: the calls before it, oldest first.
    """

    call: int
    function: str
    text: str
    expected: str
    got: str
    words: str
    before: tuple[str, ...]


@dataclass(frozen=True)
class ReplayReport:
    """What a replay found.

    Attributes:
        trace: the file.
        library: the driver that made the calls.
        calls: how many the trace has.
        made: how many were made again.
        compared_copies: copies to the host whose bytes were compared.
        not_compared: copies whose bytes were not, by reason.
        left_out: calls that were not made, by reason.
        trace_end: why the trace ends where it ends, or "".
        difference: the first one, or None.
    """

    trace: Path
    library: Path
    calls: int
    made: int
    compared_copies: int
    not_compared: dict[str, int]
    left_out: dict[str, int]
    trace_end: str
    difference: ReplayDifference | None


def replay_trace(file: str | Path, driver: str | Path, timeout: float = 30.0) -> ReplayReport:
    """Make the calls of a trace on a driver, and compare what it answers.

    Args:
        file: a trace, which `BRINGUP_DRIVER_TRACE` wrote.
        driver: the library of a driver, or its name as `load_driver` takes it; it need not be the
            one that was traced.
        timeout: seconds that one call may take.

    Returns:
        What was found: a difference, a crash and a call that does not return are results.

    Raises:
        DriverError: the trace cannot be read, or there is no such driver.
    """
    file, library = Path(file), driver_library(driver)
    trace = read_trace(file)
    with tempfile.TemporaryDirectory(prefix="bringup-replay-") as folder:
        result, progress = Path(folder, "result"), Path(folder, "progress")
        progress.write_bytes(bytes(PROGRESS.size))
        command = [sys.executable, "-m", "bringup.devices._replay"]
        command += [str(file), str(library), str(result), str(progress), str(timeout)]
        with (
            Path(folder, "errors").open("w+b") as errors,
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=errors) as process,
        ):
            hung = _watch(process, progress, timeout + SLACK)
            errors.seek(0)
            said = errors.read().decode(errors="replace")
        found = json.loads(result.read_text()) if result.exists() else {}
        number, is_in_driver = PROGRESS.unpack(progress.read_bytes())
    if "error" in found:
        raise DriverError(found["error"])
    if not found:
        if not number:
            raise DriverError(f"the replay of {file} did not begin:\n{said[-2000:]}")
        got = "the call has not returned" if hung else _end(process.returncode, is_in_driver)
        found = {"difference": {"call": number, "got": got, "words": said[-1000:]}}
    return _report(trace, library, found)


def _watch(process: subprocess.Popen[bytes], progress: Path, limit: float) -> bool:
    """Wait for the end; True: one call took longer than the limit, and the process was ended."""
    former, since = b"", time.monotonic()
    while True:
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            now = progress.read_bytes()
            _, is_in_driver = PROGRESS.unpack(now)
            if now != former or not is_in_driver:
                former, since = now, time.monotonic()
            elif time.monotonic() - since > limit:
                process.kill()
                process.wait()
                return True
        else:
            return False


def _end(code: int, is_in_driver: int) -> str:
    """Return how a process that could not say anything itself has ended."""
    how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    where = "in the call" if is_in_driver else "between this call and the next"
    return f"the process ended with {how} {where}"


def _report(trace: Trace, library: Path, found: dict[str, Any]) -> ReplayReport:
    numbers = [call.number for call in trace.calls]
    difference = found.pop("difference")
    if difference is not None:
        index = numbers.index(difference["call"])
        call = trace.calls[index]
        found.setdefault("made", index)
        before = trace.calls[max(0, index - _BEFORE) : index]
        difference = ReplayDifference(
            **{"expected": _expected(call), **difference},
            function=call.function,
            text=str(call),
            before=tuple(map(str, before)),
        )
    counts = {"compared_copies": 0, "not_compared": {}, "left_out": {}, **found}
    return ReplayReport(
        trace=trace.file,
        library=library,
        calls=len(trace.calls),
        trace_end=trace.end,
        difference=difference,
        **counts,
    )


def _expected(call: Call) -> str:
    return "the call had not returned" if call.status is None else f"status {call.status}"
