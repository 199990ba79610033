"""Running a compiler: without a shell, in a process group of its own, under limits.

Owns the limits. What the outcome means is decided elsewhere.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bringup import settings

__all__ = ["Finished", "Stop", "run"]


@dataclass(frozen=True)
class Stop:
    """Why a compiler was stopped by us: what it ran into, and the setting that moves it."""

    what: str
    setting: str


@dataclass(frozen=True)
class Finished:
    """What came of a run: exit status (negative: a signal), what was printed, the command that ran,
    and why it was stopped if it was.
    """

    status: int
    output: str
    command: tuple[str, ...]
    stop: Stop | None = None


def _limit(pid: int) -> None:
    """Limits apply to each process of the compiler, and what they start inherits them.

    They are set from outside, because nothing may run between fork and exec in a process with
    threads. So the compiler may have started others by now: whoever was started before its parent
    was limited is found among the parent's children afterwards.
    """
    wanted = (
        (resource.RLIMIT_AS, settings.jit_memory()),
        (resource.RLIMIT_FSIZE, settings.jit_file_size()),
        (resource.RLIMIT_CORE, 0),
    )
    try:
        for kind, most in wanted:
            if most is not None:
                _, hard = resource.prlimit(pid, kind)
                allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
                resource.prlimit(pid, kind, (allowed, allowed))
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            started = children.read().split()
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return  # it has ended already, and its number may be another's
    for child in started:
        _limit(int(child))


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Finished:
    """Runs the command in the folder. The compiler starts children of its own: all of them end with
    it.

    Raises `OSError` when it cannot be started.
    """
    seconds = settings.jit_timeout()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        _limit(process.pid)
        output, _ = process.communicate(timeout=seconds)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        stop = Stop(f"it ran for {seconds:g} s", "BRINGUP_JIT_TIMEOUT")
        return Finished(-signal.SIGKILL, _text(output), tuple(command), stop)
    return Finished(process.returncode, _text(output), tuple(command))


def _text(output: bytes) -> str:
    return output.decode(errors="replace")
