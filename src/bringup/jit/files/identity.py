"""File identity: stamps (what `stat` says), and digests of files that nothing touched."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Sequence
from stat import S_ISREG
from typing import TypeAlias

# CLOCK_REALTIME_COARSE, by which Linux stamps files; Python has no name for it. It lags behind
# time.time() by a tick, and on a busy machine by more: a file written now may look older than now.
_CLOCK = 5
_TICKS = 100  # half milliseconds to wait for one; a clock that is set back comes to none

# A file system's clock ticks in steps of a few milliseconds: two writes within one step leave the
# same stamp. A stamp proves that the content is unchanged only if it was already older than this
# when the file was read.
_SETTLED_NS = 50_000_000


# What has to stay the same for a file to count as untouched: inode, size, mtime_ns, ctime_ns.
# A bare tuple, for a warm start makes dozens of them.
Stamp: TypeAlias = tuple[int, int, int, int]

_digests: dict[str, tuple[Stamp, str]] = {}


def file_time_ns() -> int:
    """Return the time as files have it: one that changes from now on is not stamped earlier."""
    return time.clock_gettime_ns(_CLOCK)


def next_file_time_ns() -> int:
    """Return a time between what changed before this call and what changes after it, by waiting for
    the next tick of the files' clock, a few milliseconds: that of writes is finer at times.
    """
    before = time.time_ns()
    for _ in range(_TICKS):
        if file_time_ns() > before:
            break
        time.sleep(0.0005)
    return file_time_ns()


def stamp(path: str | os.PathLike[str]) -> Stamp:
    """Return the stamp of the file that `path` leads to. Raises `OSError` when there is none."""
    status = os.stat(path)
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def as_stamp(numbers: Sequence[int]) -> Stamp:
    """Return a stamp that went through JSON. Raises `ValueError` or `TypeError` when it is none."""
    inode, size, mtime_ns, ctime_ns = numbers
    return (inode, size, mtime_ns, ctime_ns)


def is_settled(seen: Stamp) -> bool:
    """Return whether `seen` is old enough to stand for the content that is read now."""
    return max(seen[2:]) + _SETTLED_NS < file_time_ns()


def read_bytes(path: str) -> bytes:
    """Return the content of a file. Raises `OSError`, also for a pipe or a device."""
    with open(path, "rb", buffering=0, opener=_open_at_once) as file:
        if not S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", path)
        return file.readall()


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def quick_digest(content: bytes) -> str:
    """Return BLAKE2b of `content`, for this machine: the first SHA-256 takes long."""
    return hashlib.blake2b(content, digest_size=32).hexdigest()


def bytes_digest(content: bytes) -> str:
    """Return SHA-256 of `content`, in hex."""
    return hashlib.sha256(content).hexdigest()


def file_digest(path: str) -> str:
    """Return SHA-256 of the content of a file, in hex. Raises `OSError`."""
    seen = stamp(path)
    known = _digests.get(path)
    if known is not None and known[0] == seen:
        return known[1]
    settled = is_settled(seen)
    digest = bytes_digest(read_bytes(path))
    if settled:
        _digests[path] = (seen, digest)
    else:
        _digests.pop(path, None)
    return digest
