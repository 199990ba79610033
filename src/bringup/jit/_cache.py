"""The store on disk: one folder per build, published by one rename, verified before it is used.

    <root>/v1/<ab>/<key>/        kernel.so, meta.json, build.log, source
    <root>/v1/.manifests/        request key -> builds, and the headers that each of them read
    <root>/v1/.toolchains/       what compilers answered
    <root>/v1/.locks/ .staging/ .failed/ .quarantine/

Readers take no lock. An entry that is not what its meta.json says is put aside and built again.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bringup import settings
from bringup.jit._files import (
    Stamp,
    as_stamp,
    bytes_digest,
    file_digest,
    is_settled,
    read_bytes,
    stamp,
)
from bringup.jit._key import Record, key_of

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

_OCCUPIED = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}

_log = settings.logger("jit")
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


class Variant(NamedTuple):
    """One build of a request: its key, what its binary has to be, and the headers it read."""

    key: str
    size: int
    sha256: str
    headers: tuple[Header, ...]


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


def _read_back(header: tuple[str, str, list[int] | None]) -> Header:
    path, digest, seen = header
    return Header(path, digest, as_stamp(seen) if seen else None)


def _is_unchanged(header: Header) -> bool:
    try:
        return stamp(header.path) == header.seen or file_digest(header.path) == header.digest
    except (OSError, ValueError, TypeError):
        return False  # it is gone, or the manifest is damaged


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
        self._prefix = f"{self._store}/"  # a warm start has no time for Path

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
            if reason := self.distrust():
                raise StoreUnwritableError(reason)
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
            return read_bytes(f"{self._prefix}.toolchains/{name}")
        except OSError:
            return None

    def keep(self, name: str, content: bytes) -> None:
        """Keeps what a compiler answered for other processes, if this cache can be written."""
        with contextlib.suppress(StoreUnwritableError):
            _replace(self.folder(".toolchains") / name, content)

    def lookup(self, request_key: str) -> Hit | None:
        """The verified entry for a request whose headers are as they were, or None."""
        for variant in self._variants(request_key):
            if all(map(_is_unchanged, variant.headers)) and self._intact(variant):
                path = Path(self._prefix, variant.key[:2], variant.key, BINARY)
                return Hit(path, variant.key, variant.headers)
        return None

    def publish(
        self,
        staged: Path,
        request_key: str,
        record: Record,
        headers: Sequence[Header],
        facts: Mapping[str, object],
    ) -> Hit:
        """Makes the staged folder an entry, whole or not at all; when another process was first,
        its entry counts.

        Raises `StoreUnwritableError`.
        """
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
            size, sha256 = self._commit(staged, key)
            self._add_variant(request_key, Variant(key, size, sha256, tuple(headers)))
        return Hit(self._entry(key) / BINARY, key, tuple(headers))

    def _entry(self, key: str) -> Path:
        return self._store / key[:2] / key

    def _commit(self, staged: Path, key: str) -> tuple[int, str]:
        """Size and digest of the binary that is now under `key`."""
        final = self._entry(key)
        final.parent.mkdir(exist_ok=True, mode=0o700)
        for _ in range(3):
            if winner := self._verified(key):
                return winner
            try:
                staged.rename(final)
                _sync(final.parent)
            except OSError as error:
                if error.errno not in _OCCUPIED:
                    raise
        raise StoreUnwritableError(f"{final} holds something that cannot be put aside")

    def _intact(self, variant: Variant) -> bool:
        """Whether the binary is what the manifest, or at least its own meta.json, says."""
        try:
            content = read_bytes(f"{self._prefix}{variant.key[:2]}/{variant.key}/{BINARY}")
        except OSError:
            content = b""
        if len(content) == variant.size and bytes_digest(content) == variant.sha256:
            return True
        return self._verified(variant.key) is not None

    def _verified(self, key: str) -> tuple[int, str] | None:
        """Size and digest of a binary that is what its meta.json says. Puts another aside."""
        entry = self._entry(key)
        try:
            meta: dict[str, Any] = json.loads((entry / META).read_bytes())
            size, sha256 = meta["files"][BINARY]["size"], meta["files"][BINARY]["sha256"]
            content = (entry / BINARY).read_bytes()
            if meta["key"] != key:
                problem = f"it is entry {str(meta['key'])[:12]}"
            elif len(content) != size:
                problem = f"{BINARY} has {len(content)} bytes instead of {size}"
            elif bytes_digest(content) != sha256:
                problem = f"the content of {BINARY} has changed"
            else:
                return size, sha256
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

    def _variants(self, request_key: str) -> list[Variant]:
        try:
            variants = json.loads(read_bytes(f"{self._prefix}.manifests/{request_key}.json"))
            return [
                Variant(key, size, sha256, tuple(map(_read_back, headers)))
                for key, size, sha256, headers in variants
            ]
        except (OSError, ValueError, TypeError):
            return []  # only an index: a build makes it anew

    def _add_variant(self, request_key: str, added: Variant) -> None:
        others = [old for old in self._variants(request_key) if old.key != added.key]
        variants = [added, *others][:_VARIANTS_PER_REQUEST]
        content = json.dumps(variants, separators=(",", ":")).encode()
        _replace(self.folder(".manifests") / f"{request_key}.json", content)

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
