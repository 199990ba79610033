"""The store on disk: one folder per build, published by one rename, verified before it is used.

    <root>/v1/<ab>/<key>/        kernel.so, meta.json, build.log, source
    <root>/v1/.manifests/        request key -> the headers that its builds read
    <root>/v1/.toolchains/       what compilers answered
    <root>/v1/.locks/ .staging/ .failed/ .quarantine/

Readers take no lock. An entry that is not what its meta.json says is put aside and built again.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import logging
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bringup.jit._files import Stamp, bytes_digest, file_digest, is_settled, remember, stamp
from bringup.jit._key import Record, build_record, key_of

__all__ = ["Cache", "Entry", "Header", "Hit", "StoreUnwritableError"]

BINARY = "kernel.so"
META = "meta.json"
LOG = "build.log"

_VARIANTS_PER_REQUEST = 8
_STALE_STAGING_SECONDS = 3600
_UNWRITABLE = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.ENOENT,
    errno.ENOTDIR,
}

_log = logging.getLogger("bringup.jit")
_serial = itertools.count()


class StoreUnwritableError(Exception):
    """Internal: this cache cannot take an entry now; another one has to."""


class Header(NamedTuple):
    """A header that a build read. `seen` is None when it was too young for its stamp to prove
    anything.
    """

    path: str
    digest: str
    seen: Stamp | None


class Hit(NamedTuple):
    """A verified entry."""

    path: Path
    key: str
    headers: tuple[Header, ...]


@dataclass(frozen=True)
class Entry:
    """One build in the cache.

    Attributes:
        key: its build key.
        name: the source's name.
        bytes: what its folder holds.
        path: its folder.
    """

    key: str
    name: str
    bytes: int
    path: Path


@contextlib.contextmanager
def _unwritable_is_told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _UNWRITABLE:
            raise StoreUnwritableError(str(error)) from error
        raise


def read_header(path: str) -> Header:
    """What the header is now. Raises `OSError` when it is gone."""
    seen = stamp(path)
    settled = is_settled(seen)
    return Header(path, file_digest(path), seen if settled else None)


def _is_unchanged(header: Header) -> bool:
    try:
        if header.seen is not None and stamp(header.path) == header.seen:
            remember(header.path, header.seen, header.digest)
            return True
        return file_digest(header.path) == header.digest
    except OSError:
        return False


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _replace(path: Path, content: bytes) -> None:
    """Writes a whole file or none. Raises `StoreUnwritableError`."""
    draft = path.with_suffix(f".{os.getpid()}-{next(_serial)}")
    with _unwritable_is_told():
        draft.write_bytes(content)
        draft.replace(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Cache:
    """The kernel cache under one root. `jit.cache()` gives the one in use."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._store = root / "v1"

    def __repr__(self) -> str:
        return f"Cache({str(self.root)!r})"

    def distrust(self) -> str:
        """Why nothing may be loaded from here, or "". Code is loaded from the store, so nobody
        else may write it.
        """
        try:
            status = os.lstat(self._store)
        except OSError:
            return ""
        if not stat.S_ISDIR(status.st_mode):
            return f"{self._store} is not a folder"
        if status.st_uid not in (os.geteuid(), 0):
            return f"{self._store} belongs to user {status.st_uid}, not to user {os.geteuid()}"
        if status.st_mode & 0o022:
            return f"{self._store} can be written by others (mode {status.st_mode & 0o777:o})"
        return ""

    def folder(self, name: str) -> Path:
        """A working folder of the store, made when it is missing. Raises `StoreUnwritableError`."""
        path = self._store / name
        with _unwritable_is_told():
            self._store.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._store.mkdir(exist_ok=True, mode=0o700)
            path.mkdir(exist_ok=True, mode=0o700)
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "cannot be written", str(path))
        return path

    def entries(self) -> list[Entry]:
        """Every entry with a readable meta.json, by name and key."""
        found = []
        for meta in self._store.glob(f"[0-9a-f][0-9a-f]/*/{META}"):
            try:
                name = str(json.loads(meta.read_bytes())["name"])
                size = sum(file.stat().st_size for file in meta.parent.iterdir())
            except (OSError, ValueError, KeyError, TypeError):
                continue  # removed meanwhile, or damaged: a lookup puts it aside
            found.append(Entry(meta.parent.name, name, size, meta.parent))
        return sorted(found, key=lambda entry: (entry.name, entry.key))

    def recall(self, name: str) -> bytes | None:
        """What a compiler answered in another process, or None."""
        try:
            return (self._store / ".toolchains" / name).read_bytes()
        except OSError:
            return None

    def keep(self, name: str, content: bytes) -> None:
        """Keeps what a compiler answered for other processes, if this cache can be written."""
        with contextlib.suppress(StoreUnwritableError):
            _replace(self.folder(".toolchains") / name, content)

    def lookup(self, request_key: str, request: Record) -> Hit | None:
        """The verified entry for a request whose headers are as they were, or None."""
        for headers in self._read_manifest(request_key):
            if all(map(_is_unchanged, headers)):
                key = key_of(build_record(request, [header.digest for header in headers]))
                if path := self._verified(key):
                    return Hit(path, key, headers)
        return None

    def publish(
        self,
        staged: Path,
        request_key: str,
        request: Record,
        headers: Sequence[Header],
        facts: Mapping[str, object],
    ) -> Hit:
        """Makes the staged folder an entry, whole or not at all; when another process was first,
        its entry counts.

        Raises `StoreUnwritableError`.
        """
        record = build_record(request, [header.digest for header in headers])
        key = key_of(record)
        with _unwritable_is_told():
            files = {path.name: path.read_bytes() for path in sorted(staged.iterdir())}
            meta = {
                **facts,
                "key": key,
                "record": record,
                "headers": [header.path for header in headers],
                "files": {
                    name: {"size": len(content), "sha256": bytes_digest(content)}
                    for name, content in files.items()
                },
            }
            _sync(staged / BINARY)
            _write_durably(staged / META, json.dumps(meta, indent=1).encode())
            _sync(staged)
            path = self._commit(staged, key)
            self._add_to_manifest(request_key, headers)
        return Hit(path, key, tuple(headers))

    def _entry(self, key: str) -> Path:
        return self._store / key[:2] / key

    def _commit(self, staged: Path, key: str) -> Path:
        final = self._entry(key)
        final.parent.mkdir(exist_ok=True, mode=0o700)
        for _ in range(2):
            try:
                staged.rename(final)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
            else:
                _sync(final.parent)
                return final / BINARY
            if winner := self._verified(key):
                shutil.rmtree(staged, ignore_errors=True)
                return winner
        raise StoreUnwritableError(f"{final} holds something that cannot be put aside")

    def _verified(self, key: str) -> Path | None:
        entry = self._entry(key)
        binary = entry / BINARY
        try:
            meta: dict[str, Any] = json.loads((entry / META).read_bytes())
            expected = meta["files"][BINARY]
            content = binary.read_bytes()
            if meta["key"] != key:
                problem = f"it is entry {str(meta['key'])[:12]}"
            elif len(content) != expected["size"]:
                problem = f"{BINARY} has {len(content)} bytes instead of {expected['size']}"
            elif bytes_digest(content) != expected["sha256"]:
                problem = f"the content of {BINARY} has changed"
            else:
                return binary
        except FileNotFoundError as error:
            if not os.path.lexists(entry):
                return None
            problem = f"{Path(error.filename).name} is missing"
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = f"{META} cannot be read ({error!r})"
        self._quarantine(entry, problem)
        return None

    def _quarantine(self, entry: Path, problem: str) -> None:
        try:
            aside = self.folder(".quarantine") / entry.name
            shutil.rmtree(aside, ignore_errors=True)
            entry.rename(aside)
            done = f"moved to {aside} and built again"
        except FileNotFoundError:
            return  # somebody else put it aside
        except (OSError, StoreUnwritableError) as error:
            done = f"not used (it cannot be put aside: {error})"
        _log.warning("damaged kernel cache entry %s: %s; %s", entry, problem, done)

    def _manifest(self, request_key: str) -> Path:
        return self._store / ".manifests" / f"{request_key}.json"

    def _read_manifest(self, request_key: str) -> list[tuple[Header, ...]]:
        try:
            variants = json.loads(self._manifest(request_key).read_bytes())
            return [
                tuple(
                    Header(str(path), str(digest), Stamp(*seen) if seen else None)
                    for path, digest, seen in variant
                )
                for variant in variants
            ]
        except (OSError, ValueError, TypeError):
            return []  # only an index: a build makes it anew

    def _add_to_manifest(self, request_key: str, headers: Sequence[Header]) -> None:
        paths_and_digests = [header[:2] for header in headers]
        others = [
            variant
            for variant in self._read_manifest(request_key)
            if [header[:2] for header in variant] != paths_and_digests
        ]
        self.folder(".manifests")
        path = self._manifest(request_key)
        _replace(path, json.dumps([headers, *others][:_VARIANTS_PER_REQUEST]).encode())

    def stage(self) -> Path:
        """A new empty folder to build in, on the store's file system. Raises
        `StoreUnwritableError`.
        """
        staging = self.folder(".staging")
        self._drop_stale(staging)
        folder = staging / f"{os.getpid()}-{next(_serial)}-{time.time_ns()}"
        with _unwritable_is_told():
            folder.mkdir(mode=0o700)
        return folder

    def _drop_stale(self, staging: Path) -> None:
        """Removes what builds that were killed left behind."""
        oldest = time.time() - _STALE_STAGING_SECONDS
        for left in staging.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if left.stat().st_mtime < oldest:
                    shutil.rmtree(left, ignore_errors=True)
