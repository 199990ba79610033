"""Which entries are in use, when they were used last, and how much a store holds.

A process marks what it loads in a file that it keeps locked while it lives, so pruning sees what
must stay. Sizes are counted in 16 shards, so that nothing scans the store when an entry is added.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bringup._locks import try_lock, wait_for_lock
from bringup.jit.files.identity import read_bytes
from bringup.jit.files.layout import (
    LAST_USED,
    LOG,
    StoreLayout,
    StoreUnwritableError,
    translate_write_errors,
)

_IN_USE = ".inuse"
_SIZES = ".sizes"
_TOUCH_SECONDS = 3600
_FOREIGN_SECONDS = 86_400  # a lock of another host may be invisible here: believe it for a day


class _Mark(NamedTuple):
    path: str
    descriptor: int
    keys: set[str]


_marks: dict[str, _Mark] = {}  # by store
_marking = threading.Lock()


def _after_fork() -> None:
    """Keep the parent's marks, which a child has open; its loads get a file of their own."""
    global _marking
    _marking = threading.Lock()
    _marks.clear()


def _remove_marks() -> None:
    for mark in _marks.values():
        with contextlib.suppress(OSError):
            os.unlink(mark.path)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_remove_marks)


def _open_mark(layout: StoreLayout, keys: set[str]) -> _Mark:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    while True:
        name = f"{os.uname().nodename}-{os.getpid()}-{time.time_ns()}"
        path = f"{layout.prefix}{_IN_USE}/{name}"
        try:
            # A load from the store has checked that it may be trusted.
            descriptor = os.open(path, flags, 0o600)
        except FileNotFoundError:
            descriptor = os.open(layout.folder(_IN_USE) / name, flags, 0o600)
        wait_for_lock(descriptor)  # without locks the process's number has to do
        if os.fstat(descriptor).st_nlink:  # not removed as a dead process's
            break
        os.close(descriptor)
    os.write(descriptor, "".join(f"{key}\n" for key in sorted(keys)).encode())
    return _Mark(path, descriptor, keys)


def mark_in_use(layout: StoreLayout, key: str) -> None:
    """Protect this entry from pruning until this process ends, as is any of a read-only store."""
    with _marking, contextlib.suppress(StoreUnwritableError), translate_write_errors():
        mark = _marks.get(layout.prefix)
        if mark is None:
            _marks[layout.prefix] = _open_mark(layout, {key})
        elif not os.fstat(mark.descriptor).st_nlink:  # the whole store was deleted
            os.close(mark.descriptor)
            _marks[layout.prefix] = _open_mark(layout, mark.keys | {key})
        elif key not in mark.keys:
            os.write(mark.descriptor, f"{key}\n".encode())
            mark.keys.add(key)


def release_marks(layout: StoreLayout, keys: set[str]) -> None:
    """This process holds these entries no longer."""
    with _marking, contextlib.suppress(StoreUnwritableError), translate_write_errors():
        old = _marks.get(layout.prefix)
        if old is None or old.keys.isdisjoint(keys):
            return
        _marks[layout.prefix] = _open_mark(layout, old.keys - keys)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(old.path)
        os.close(old.descriptor)


def _is_alive(path: Path, descriptor: int) -> bool:
    host, pid, _ = path.name.rsplit("-", 2)
    locked = try_lock(descriptor)
    if locked is False:
        return True
    if host != os.uname().nodename:
        return time.time() - os.fstat(descriptor).st_mtime < _FOREIGN_SECONDS
    return locked is None and os.path.exists(f"/proc/{pid}")


def keys_in_use(layout: StoreLayout) -> set[str]:
    """Return the entries loaded by living processes. Removes marks of dead ones."""
    found: set[str] = set()
    for path in layout.files(_IN_USE):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue  # its process has just cleaned up
        try:
            if _is_alive(path, descriptor):
                found.update(path.read_text().split())
            else:
                path.unlink()
        except (OSError, ValueError):
            continue  # removed, or no mark of ours
        finally:
            os.close(descriptor)
    return found


def touch(entry: str) -> None:
    """Note that the entry was used now, at most once an hour."""
    path = f"{entry}/{LAST_USED}"
    try:
        if time.time() - os.stat(path).st_mtime < _TOUCH_SECONDS:
            return
        os.utime(path)
    except FileNotFoundError:
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError:
        return  # a store that cannot be written is not pruned either


def last_used(entry: Path) -> float:
    """When the entry was used last, in seconds since the epoch, to the hour."""
    for name in (LAST_USED, LOG, ""):
        with contextlib.suppress(OSError):
            return (entry / name).stat().st_mtime
    return 0.0


def folder_size(folder: Path) -> int:
    """Return bytes of the files in a folder. Raises `OSError` when it is gone."""
    with os.scandir(folder) as files:
        return sum(file.stat(follow_symlinks=False).st_size for file in files)


class Sizes:
    """How many bytes and entries a store holds, counted as they come and go."""

    def __init__(self, layout: StoreLayout) -> None:
        self._layout = layout

    @contextlib.contextmanager
    def _shard(self, name: str) -> Iterator[int]:
        path = self._layout.folder(_SIZES) / name
        with translate_write_errors():
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                wait_for_lock(descriptor)  # without locks the numbers are estimates
                yield descriptor
            finally:
                os.close(descriptor)

    @staticmethod
    def _parse(content: bytes) -> tuple[int, int]:
        try:
            size, entries = map(int, content.split())
        except ValueError:
            return 0, 0
        return size, entries

    @staticmethod
    def _write(descriptor: int, size: int, entries: int) -> None:
        # Always as long: what is there before is overwritten whole.
        os.pwrite(descriptor, b"%20d %20d\n" % (max(size, 0), max(entries, 0)), 0)

    def add(self, key: str, size: int, entries: int) -> None:
        """Count an entry that came, or went (negative). Raises `StoreUnwritableError`."""
        with self._shard(key[:1]) as descriptor:
            known = self._parse(os.pread(descriptor, 64, 0))
            self._write(descriptor, known[0] + size, known[1] + entries)

    def total(self) -> tuple[int, int]:
        sizes, entries = 0, 0
        for path in self._layout.files(_SIZES):
            with contextlib.suppress(OSError):
                size, count = self._parse(read_bytes(str(path)))
                sizes += size
                entries += count
        return sizes, entries

    def correct(self, found: dict[str, tuple[int, int]]) -> None:
        """Set the counters, by first digit, to a scan's. Raises `StoreUnwritableError`."""
        for digit in "0123456789abcdef":
            with self._shard(digit) as descriptor:
                self._write(descriptor, *found.get(digit, (0, 0)))
