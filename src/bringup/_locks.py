"""Locks of files between processes: a `flock`, which ends with its holder. Where the file system
has none, work is done twice, and is right all the same.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bringup import settings

_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
_POLL_SECONDS = (0.005, 0.1)  # from, to
_REPORT_SECONDS = 2.0

_log = settings.logger("locks")

Owner = tuple[int | None, float | None]  # process number and since when it holds, where known

_held: set[int] = set()
_holding = threading.Lock()


def _after_fork() -> None:
    """Close in a forked child what would keep its parent's files locked."""
    global _holding
    _holding = threading.Lock()
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)


def try_lock(descriptor: int) -> bool | None:
    """Return whether the file is now ours alone; None where the file system knows no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def wait_for_lock(descriptor: int) -> None:
    """Return when the file is ours alone; at once where the file system knows no locks."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)


@contextlib.contextmanager
def exclusive(
    path: Path,
    timeout: float,
    waiting: Callable[[float, Owner], None],
    every: float = _REPORT_SECONDS,
) -> Iterator[bool]:
    """Hold a file's lock, made where it is missing; yield whether it was had in `timeout` seconds,
    at once where a user stopped its holder. `waiting` is called with seconds and owner every so
    often. Raises `OSError` where the file cannot be opened.
    """
    start = reported_at = time.monotonic()
    pause = _POLL_SECONDS[0]
    while True:
        with _opened(path) as descriptor:
            locked = try_lock(descriptor)
            if locked is None:
                _log.debug("%s is on a file system without locks: two may do the same", path)
                yield True
                return
            if locked and _is_current(path, descriptor):
                with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
                    _sign(descriptor)
                yield True
                return
        now = time.monotonic()
        if now - start >= timeout or (timeout < math.inf and _is_stopped(*_owner(path))):
            yield False
            return
        if now - reported_at >= every or reported_at == start:
            reported_at = now
            waiting(now - start, _owner(path))
        time.sleep(pause)
        pause = min(2 * pause, _POLL_SECONDS[1])


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with _holding:
        _held.add(descriptor)
    owner = os.getpid()
    try:
        yield descriptor
    finally:
        if os.getpid() == owner:
            with _holding:
                _held.discard(descriptor)
                os.close(descriptor)


def _is_current(path: Path, descriptor: int) -> bool:
    """Return whether the file is still the one under its name: a pruned lock locks nothing."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _sign(descriptor: int) -> None:
    record = {"pid": os.getpid(), "host": os.uname().nodename, "since": time.time()}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(record).encode(), 0)


def _is_stopped(pid: int | None, _: float | None) -> bool:
    """Return whether the process was stopped by a signal or a debugger."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in "Tt"


def _owner(path: Path) -> Owner:
    try:
        record = json.loads(path.read_bytes())
        is_here = record["host"] == os.uname().nodename
        return (int(record["pid"]), float(record["since"])) if is_here else (None, None)
    except (OSError, ValueError, KeyError, TypeError):
        return None, None  # it writes its name just now
