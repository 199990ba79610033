"""One build of a request at a time between processes: a `flock` that goes with its holder.

Waiting is reported to listeners. Where the file system knows no locks nobody waits: two builds
of one request are a waste, not an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bringup import settings
from bringup.jit.files.layout import StoreLayout, translate_write_errors
from bringup.jit.files.usage import try_lock

__all__ = ["Owner", "build_lock"]

FOLDER = ".locks"
_POLL_SECONDS = (0.005, 0.1)  # from, to
_REPORT_SECONDS = 2.0

_log = settings.logger("jit")

Owner = tuple[int | None, float | None]  # process number and start of its build, where known

_held: set[int] = set()
_holding = threading.Lock()


def _after_fork() -> None:
    """A forked child must not keep its parent's builds locked when the parent dies."""
    global _holding
    _holding = threading.Lock()
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)


def _owner(path: Path) -> Owner:
    try:
        record = json.loads(path.read_bytes())
        return (int(record["pid"]), float(record["since"])) if _is_here(record) else (None, None)
    except (OSError, ValueError, KeyError, TypeError):
        return None, None  # it writes its name just now


def _is_here(record: dict[str, object]) -> bool:
    return record["host"] == os.uname().nodename


def _sign(descriptor: int) -> None:
    record = {"pid": os.getpid(), "host": os.uname().nodename, "since": time.time()}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(record).encode(), 0)


def _open(path: Path) -> int:
    with translate_write_errors():
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _is_current(path: Path, descriptor: int) -> bool:
    """Whether the file is still the one under its name: a pruned lock locks nothing."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _open_lock(path: Path) -> Iterator[int]:
    descriptor = _open(path)
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


@contextlib.contextmanager
def build_lock(
    layout: StoreLayout, key: str, timeout: float, waiting: Callable[[float, Owner], None]
) -> Iterator[bool]:
    """Holds the lock of a request, and says whether it could be had in `timeout` seconds.

    `waiting` is called with the seconds so far and the lock's owner, every few seconds. Raises
    `StoreUnwritableError`.
    """
    path = layout.folder(FOLDER) / f"{key}.lock"
    start = reported_at = time.monotonic()
    pause = _POLL_SECONDS[0]
    while True:
        with _open_lock(path) as descriptor:
            locked = try_lock(descriptor)
            if locked is None:
                _log.debug("%s is on a file system without locks: two may build the same", path)
                yield True
                return
            if locked and _is_current(path, descriptor):
                with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
                    _sign(descriptor)
                yield True
                return
        now = time.monotonic()
        if now - start >= timeout:
            yield False
            return
        if now - reported_at >= _REPORT_SECONDS or reported_at == start:
            reported_at = now
            waiting(now - start, _owner(path))
        time.sleep(pause)
        pause = min(2 * pause, _POLL_SECONDS[1])
