"""Worker processes for cases: one that crashes or hangs costs its case and no other."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from bringup._processes import ending, started
from bringup.conformance._cases import CaseResult
from bringup.errors import DriverError

PROGRAM = (sys.executable, "-W", "ignore", "-m", "bringup.conformance._worker")
_START_SECONDS = 120.0
_KEPT = 2000  # characters of what a worker printed


@dataclass
class _Process:
    process: subprocess.Popen[bytes]
    printed: IO[bytes]
    facts: dict[str, Any]
    open: contextlib.ExitStack


class Worker:
    """Runs cases one after the other in another process, which is started anew after a crash.

    Args:
        driver: of the device, as for `devices.load_driver`.
        samples: of an operator, at most so many.
        seconds: what one case may take.
        load: MODULE:FUNCTION, called once the driver is loaded; "": nothing is.
        program: the worker's command; None for `PROGRAM`.
    """

    def __init__(
        self,
        driver: str,
        samples: int,
        seconds: float,
        load: str = "",
        program: Sequence[str] | None = None,
    ) -> None:
        self._command = [*(program or PROGRAM), driver, str(samples), *([load] if load else [])]
        self._seconds = seconds
        self._running: _Process | None = None

    def facts(self) -> dict[str, Any]:
        """Return what the process says of the device; `DriverError` if it does not load."""
        return self._started().facts

    def run(self, case: str) -> CaseResult:
        """Return the result of a case, whatever becomes of the process.

        Args:
            case: its name.
        """
        running = self._started()
        assert running.process.stdin is not None
        start = time.perf_counter()
        with contextlib.suppress(BrokenPipeError):
            running.process.stdin.write(f"{case}\n".encode())
            running.process.stdin.flush()
        line = self._line(running, self._seconds)
        if line:
            return CaseResult(**json.loads(line))
        took = time.perf_counter() - start
        if line is None:
            self.close()
            reason = f"has not ended after {self._seconds:g} s"
            return CaseResult(case, "timeout", reason=reason, seconds=took)
        reason = self._ended(running)
        self.close()
        return CaseResult(case, "crashed", reason=reason, seconds=took)

    def close(self) -> None:
        """End the process."""
        if self._running is not None:
            self._running.open.close()
            self._running = None

    def _started(self) -> _Process:
        if self._running is None:
            with contextlib.ExitStack() as stack:
                printed = stack.enter_context(tempfile.TemporaryFile())
                process = stack.enter_context(
                    started(self._command, takes_input=True, errors=printed)
                )
                self._running = _Process(process, printed, {}, stack.pop_all())
            line = self._line(self._running, _START_SECONDS)
            if not line:
                reason = self._ended(self._running) if line is not None else "it does not start"
                self.close()
                raise DriverError(f"the process that tests the device cannot work: {reason}")
            self._running.facts = json.loads(line)
        return self._running

    def _line(self, running: _Process, seconds: float) -> str | None:
        """Return the next answer; "" at the end of the process, None if none in time."""
        assert running.process.stdout is not None
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            ready, _, _ = select.select([running.process.stdout], [], [], left)
            if ready:  # an answer is one line, written at once
                return running.process.stdout.readline().decode()
        return None

    def _ended(self, running: _Process) -> str:
        how = f"ended with {ending(running.process.wait())}"
        said = self._said(running)
        return f"{how}; {said}" if said else how

    def _said(self, running: _Process) -> str:
        """Return the last line that the process printed."""
        running.printed.seek(0)
        lines = running.printed.read().decode(errors="replace")[-_KEPT:].strip().splitlines()
        return lines[-1] if lines else ""
