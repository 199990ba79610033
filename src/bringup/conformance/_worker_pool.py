"""Worker processes for cases: one that crashes or hangs costs its case and no other."""

from __future__ import annotations

import contextlib
import functools
import json
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import IO, Any

from bringup._processes import ending, started
from bringup.conformance._cases import CaseResult
from bringup.conformance._use_cases import RANKED, RANKS
from bringup.errors import DriverError

PROGRAM = (sys.executable, "-W", "ignore", "-m", "bringup.conformance._worker")
# From worst to best; a refusal is better than a wrong number, and no pass.
ORDER = ("crashed", "timeout", "failed", "refused", "pass", "native")
_START_SECONDS = 120.0
_KEPT = 2000  # characters of what a worker printed


@dataclass
class _Process:
    process: subprocess.Popen[bytes]
    printed: IO[bytes]
    facts: dict[str, Any]
    open: contextlib.ExitStack


class Worker:
    """Runs cases one after the other in another process, which is started anew after a crash; what
    needs several ranks in as many, which end with their case.

    `load` (MODULE:FUNCTION) is called once the driver is loaded; `environment` is None for ours,
    and `rank` a number in a group of `RANKS`, and the folder of its store.
    """

    def __init__(
        self,
        driver: str,
        samples: int,
        seconds: float,
        load: str = "",
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] | None = None,
        rank: tuple[int, str] | None = None,
    ) -> None:
        asked = json.dumps([driver, samples, load, rank])
        self._is_rank = rank is not None
        self._make_rank = functools.partial(
            Worker, driver, samples, seconds, load, environment, program
        )
        self._command = [*(program or PROGRAM), asked]
        self._environment = environment
        self._seconds = seconds
        self._running: _Process | None = None
        self._ranks: list[Worker] = []

    def facts(self) -> dict[str, Any]:
        """Return what the process says of the device; `DriverError` if it does not load."""
        return self._started().facts

    def run(self, case: str) -> CaseResult:
        if case.startswith(RANKED) and not self._is_rank:
            return self._run_ranks(case)
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

    def _run_ranks(self, case: str) -> CaseResult:
        """Return the worst of the ranks' results."""
        with (
            tempfile.TemporaryDirectory(prefix="bringup-ranks-") as folder,
            ThreadPoolExecutor(RANKS) as threads,
        ):
            self._ranks = [self._make_rank(rank=(number, folder)) for number in range(RANKS)]
            try:
                list(threads.map(Worker.facts, self._ranks))  # all are there before one begins
                found = list(threads.map(Worker.run, self._ranks, [case] * RANKS))
            finally:
                for rank in self._ranks:
                    rank.close()
        worst = min(found, key=lambda one: ORDER.index(one.outcome))
        return replace(
            worst,
            native=all(one.native for one in found),
            seconds=max(one.seconds for one in found),
        )

    def close(self) -> None:
        for rank in self._ranks:
            rank.close()
        if self._running is not None:
            self._running.open.close()
            self._running = None

    def _started(self) -> _Process:
        if self._running is None:
            with contextlib.ExitStack() as stack:
                printed = stack.enter_context(tempfile.TemporaryFile())
                process = stack.enter_context(
                    started(
                        self._command,
                        environment=self._environment,
                        takes_input=True,
                        errors=printed,
                    )
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
