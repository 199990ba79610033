"""Keeps a store within its bounds: the entries used longest ago go first, but none in use."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bringup import settings
from bringup._locks import try_lock
from bringup.jit.files.entry_usage import Sizes, folder_size, keys_in_use, last_used
from bringup.jit.files.layout import QUARANTINE, STAGING, StoreLayout, translate_write_errors
from bringup.jit.files.locks import FOLDER as LOCKS
from bringup.jit.files.locks import build_lock
from bringup.jit.store.call_records import CallIndex
from bringup.jit.store.call_records import builds_named_in as builds_recorded_in
from bringup.jit.store.index import PortableIndex, RequestIndex, builds_named_in

FAILED = ".failed"
_TOOLCHAINS = ".toolchains"
_CALLS = CallIndex.FOLDER
_TIDIED = ".tidied"

_HOUR = 3600
_DAY = 24 * _HOUR
_KEPT_SECONDS = {STAGING: _HOUR, QUARANTINE: _DAY, FAILED: 7 * _DAY, _CALLS: 7 * _DAY}
_INDEXES = {
    RequestIndex.FOLDER: builds_named_in,
    PortableIndex.FOLDER: builds_named_in,
    _CALLS: builds_recorded_in,
}
_FILL = 0.9  # an automatic prune makes room for more than one entry

_log = settings.logger("jit")
_serial = itertools.count()


@dataclass(frozen=True)
class Pruned:
    """What `prune` or `clear` did.

    Attributes:
        removed: the keys of the entries that went, oldest use first.
        bytes: what their folders held.
        in_use: entries that would have gone, but that a living process has loaded.
    """

    removed: tuple[str, ...] = ()
    bytes: int = 0
    in_use: tuple[str, ...] = ()


class _PruneCandidate(NamedTuple):
    used: float
    key: str
    size: int
    folder: Path


def scan(layout: StoreLayout) -> list[_PruneCandidate]:
    """Return every entry, the one used longest ago first."""
    found = []
    for folder in layout.entry_folders():
        with contextlib.suppress(OSError):  # removed
            found.append(
                _PruneCandidate(last_used(folder), folder.name, folder_size(folder), folder)
            )
    return sorted(found)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _remove(layout: StoreLayout, victims: Iterable[_PruneCandidate]) -> Pruned:
    """Remove the entries whole, and restore what was loaded at that moment."""
    staging = layout.folder(STAGING)
    trash: list[tuple[_PruneCandidate, Path]] = []
    for victim in victims:
        aside = staging / f"trash-{os.getpid()}-{next(_serial)}-{time.time_ns()}"
        with translate_write_errors(), contextlib.suppress(FileNotFoundError):  # another prune
            victim.folder.rename(aside)
            trash.append((victim, aside))
    in_use = keys_in_use(layout)
    removed, kept = [], []
    for victim, aside in trash:
        if victim.key in in_use:
            with contextlib.suppress(OSError):  # it has been built again: then that one counts
                aside.rename(victim.folder)
            kept.append(victim.key)
        else:
            removed.append(victim)
        _delete(aside)
    return Pruned(tuple(v.key for v in removed), sum(v.size for v in removed), tuple(kept))


def _count(layout: StoreLayout, left: Iterable[_PruneCandidate]) -> None:
    found: dict[str, tuple[int, int]] = {}
    for entry in left:
        size, entries = found.get(entry.key[:1], (0, 0))
        found[entry.key[:1]] = (size + entry.size, entries + 1)
    Sizes(layout).correct(found)


def prune(
    layout: StoreLayout, max_bytes: float, max_entries: float, *, keep: Collection[str] = ()
) -> Pruned:
    """Remove entries but `keep` beyond the bounds and stale ones. Raises `StoreUnwritableError`."""
    entries = scan(layout)
    size, count = sum(entry.size for entry in entries), len(entries)
    in_use = keys_in_use(layout)
    victims, spared = [], []
    for entry in entries:
        if size <= max_bytes and count <= max_entries:
            break
        if entry.key in keep:
            continue
        if entry.key in in_use:
            spared.append(entry.key)
            continue
        victims.append(entry)
        size, count = size - entry.size, count - 1
    done = _remove(layout, victims)
    _count(layout, (entry for entry in entries if entry.key not in done.removed))
    tidy(layout)
    return Pruned(done.removed, done.bytes, (*spared, *done.in_use))


def clear(layout: StoreLayout) -> Pruned:
    """Remove all but what living processes have loaded or build. Raises `StoreUnwritableError`."""
    done = prune(layout, 0, 0)
    for name in (FAILED, QUARANTINE, _TOOLCHAINS, _CALLS):
        for path in layout.files(name):
            _delete(path)
    return done


def prune_when_full(
    layout: StoreLayout, max_bytes: float, max_entries: float, keep: Collection[str]
) -> Pruned:
    """Prune all but `keep` if counters are beyond bounds. Raises `StoreUnwritableError`."""
    size, count = Sizes(layout).total()
    if size <= max_bytes and count <= max_entries:
        if _is_older(layout.path(_TIDIED), _HOUR):
            tidy(layout)
        return Pruned()
    with build_lock(layout, "prune", 0, lambda _seconds, _owner: None) as mine:
        if not mine:
            return Pruned()  # another process is at it
        done = prune(layout, _FILL * max_bytes, _FILL * max_entries, keep=keep)
    _log.info("the kernel cache was full: %d entries pruned", len(done.removed))
    return done


def _is_older(path: Path, seconds: float) -> bool:
    """Return whether nothing happened to the file for so long; also when there is none."""
    try:
        return time.time() - os.lstat(path).st_mtime > seconds
    except OSError:
        return True


def _drop_stale_locks(layout: StoreLayout) -> None:
    for path in layout.files(LOCKS):
        if not _is_older(path, _HOUR):
            continue
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if try_lock(descriptor):  # another holder sees that it is gone
                    path.unlink()
            finally:
                os.close(descriptor)


def _drop_where(paths: Iterable[Path], stale: Callable[[Path], bool]) -> None:
    for path in paths:
        if stale(path):
            _delete(path)


def tidy(layout: StoreLayout) -> None:
    """Remove what is not needed, apart from entries. Raises `StoreUnwritableError`."""
    with translate_write_errors():
        layout.folder(STAGING)
        layout.path(_TIDIED).touch()
    for name, seconds in _KEPT_SECONDS.items():
        _drop_where(layout.files(name), lambda path, age=seconds: _is_older(path, age))  # type: ignore[misc]
    _drop_stale_locks(layout)
    keys_in_use(layout)  # forgets processes that are gone
    present = {folder.name for folder in layout.entry_folders()}
    for name, builds_in in _INDEXES.items():
        _drop_where(
            layout.files(name),
            # A young one may belong to an entry that came after the look above.
            lambda path, of=builds_in: _is_older(path, 60) and present.isdisjoint(of(path)),  # type: ignore[misc]
        )
