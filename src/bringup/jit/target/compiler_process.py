"""Running a compiler: without a shell, in a process group of its own, under limits."""

from __future__ import annotations

import errno
import math
import re
import resource
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bringup import settings
from bringup._processes import output_within, started

_SECONDS_MORE = 5
# How the shell that starts a program says that it cannot.
_NOT_STARTED = {126: errno.EACCES, 127: errno.ENOENT}
_REFUSAL = rb"(?m)\A\S*sh: (?:\d+|line \d+): (?:exec: )?(.*)$"
_HEAD, _TAIL = 192 << 10, 64 << 10  # bytes of what a compiler prints


class Stop(NamedTuple):
    """Why a compiler was stopped by us: what it ran into, and the setting that moves it."""

    what: str
    setting: str


class Finished(NamedTuple):
    """What came of a compiler's run, which `Target.run` returns.

    Attributes:
        status: its exit status, negative for a signal.
        output: what was printed.
        command: the command that ran.
        stop: why it was stopped, and the setting that moves that limit; None where it was not.
    """

    status: int
    output: str
    command: tuple[str, ...]
    stop: Stop | None = None


def _limit(pid: int) -> None:
    """Limit a process before it begins, and its children; no code of ours runs after fork."""
    wanted = (
        (resource.RLIMIT_AS, settings.jit_memory()),
        (resource.RLIMIT_FSIZE, settings.jit_file_size()),
        (resource.RLIMIT_CORE, 0),
        # For what goes on without us; it is stopped by the clock otherwise.
        (resource.RLIMIT_CPU, math.ceil(settings.jit_timeout()) + _SECONDS_MORE),
    )
    for kind, most in wanted:
        if most is not None:
            _, hard = resource.prlimit(pid, kind)
            allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(pid, kind, (allowed, allowed))


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Finished:
    """Run the command in the folder; its children end with it, and with this process. Raises
    `OSError`.
    """
    seconds = settings.jit_timeout()
    with started(command, folder=folder, environment=environment, prepare=_limit) as process:
        output, in_time = output_within(process, seconds)
    if not in_time:
        stop = Stop(f"it ran for {seconds:g} s", "BRINGUP_JIT_TIMEOUT")
        return Finished(-signal.SIGKILL, _text(output), tuple(command), stop)
    if process.returncode in _NOT_STARTED and (said := re.match(_REFUSAL, output)):
        raise OSError(_NOT_STARTED[process.returncode], said[1].decode(errors="replace"))
    return Finished(process.returncode, _text(output), tuple(command))


def _text(output: bytes) -> str:
    """Return the beginning and the end of what was printed."""
    left_out = len(output) - _HEAD - _TAIL
    if left_out > 0:
        middle = b"\n[... %d bytes left out ...]\n" % left_out
        output = output[:_HEAD] + middle + output[-_TAIL:]
    return output.decode(errors="replace")
