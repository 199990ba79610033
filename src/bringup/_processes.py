"""Programs that this process starts and that must not outlive it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["started"]

# The program begins when it is told to, and not when we are gone by then: until then it has no
# children, and nothing that would have to be ended.
_START = 'read -r go && exec "$@" </dev/null'
# Nobody writes to its input: it ends when the other end is closed, which kill -9 does too.
_WATCHER = 'read -r never; kill -TERM "-$1"'


@contextlib.contextmanager
def started(
    argv: Sequence[str],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    prepare: Callable[[int], None] = lambda pid: None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a program in a session of its own, its output in one pipe. Within, its process group
    is sent SIGTERM when this process ends, whatever ends it; afterwards it is the caller's.

    Args:
        argv: the program, by its path, and its arguments.
        folder: where it runs.
        environment: its variables; ours when None.
        prepare: called with its number before it begins.
    """
    process = subprocess.Popen(
        ["/bin/sh", "-c", _START, "sh", *argv],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
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
        with contextlib.suppress(BrokenPipeError), process.stdin as order:
            order.write(b"go\n")
        process.stdin = None
        yield process
    finally:
        # Killed before its input is closed: the group's number may be another's by then.
        watcher.kill()
        watcher.communicate()
