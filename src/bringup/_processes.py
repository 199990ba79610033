"""Programs that this process starts and that must not outlive it, and how a process ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

# The program begins on a signal of ours, and not when we are gone by then: until then it has no
# children, and nothing that would have to be ended.
_START = 'read -r go && exec "$@"'
# Nothing writes to its input: it ends when the other end is closed, which kill -9 does too.
_WATCHER = 'read -r never; kill -TERM "-$1"'


@contextlib.contextmanager
def started(
    argv: Sequence[str],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    prepare: Callable[[int], None] = lambda pid: None,
    takes_input: bool = False,
    output: int | None = subprocess.PIPE,
    errors: int | IO[bytes] | None = subprocess.STDOUT,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program by its path, in a session of its own that ends with this process or the
    block. `prepare` is called with its number before it begins; `takes_input` makes its input a
    pipe; `errors` go by default where its `output` goes.
    """
    process = subprocess.Popen(
        ["/bin/sh", "-c", _START if takes_input else f"{_START} </dev/null", "sh", *argv],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=errors,
        start_new_session=True,
    )
    watcher = subprocess.Popen(
        ["/bin/sh", "-c", _WATCHER, "sh", str(process.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        prepare(process.pid)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b"go\n")
            process.stdin.flush()
        if not takes_input:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.stdin = None
        yield process
    finally:
        try:
            end(process)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
        finally:
            # Killed before its input is closed: the group's number may be another's by then.
            watcher.kill()
            watcher.communicate()


def end(process: subprocess.Popen[bytes], grace: float = 0.0) -> None:
    """End the group of a running program: by SIGTERM and grace in seconds, then by SIGKILL."""
    for how in (signal.SIGTERM, signal.SIGKILL) if grace else (signal.SIGKILL,):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace or None)


def output_within(process: subprocess.Popen[bytes], seconds: float) -> tuple[bytes, bool]:
    """Return a program's output, and whether it ended in time; else its group was ended."""
    try:
        return process.communicate(timeout=seconds)[0], True
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0], False


def ending(code: int) -> str:
    """Return how a process ended, by its `returncode`: "SIGSEGV", "exit code 3"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:  # a real-time signal has no name
        return f"signal {-code}"
