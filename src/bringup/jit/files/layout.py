"""Where things lie in a store, and whether the store may be trusted and written.

<root>/v1/<ab>/<key>/    an entry: kernel.so, meta.json, build.log, source
<root>/v1/.<name>/       everything else
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

BINARY = "kernel.so"
META = "meta.json"
LOG = "build.log"
QUARANTINE, STAGING = ".quarantine", ".staging"
LAST_USED = ".last_used"  # in an entry; its mtime is the time of the last use, to the hour

_UNWRITABLE = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOENT,
    errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.ESTALE, errno.EBUSY,
    errno.EIO, errno.EXDEV, errno.EISDIR, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP,
}  # fmt: skip
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SHARED = stat.S_IWGRP | stat.S_IWOTH

_VERSION = "v1"
_serial = itertools.count()


class StoreUnwritableError(Exception):
    """Internal: this cache cannot take an entry now; another one has to."""


@contextlib.contextmanager
def translate_write_errors(numbers: Collection[int] = _UNWRITABLE) -> Iterator[None]:
    """Turn an `OSError` of a store that cannot be written into `StoreUnwritableError`."""
    try:
        yield
    except OSError as error:
        if error.errno in numbers:
            raise StoreUnwritableError(str(error)) from error
        raise


def translate_disk_full() -> contextlib.AbstractContextManager[None]:
    """Turn an `OSError` for want of space alone, where others may be about other files."""
    return translate_write_errors(_FULL)


def write_durably(path: Path, content: bytes) -> None:
    """Write a new file and waits until the disk has it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync(*paths: Path) -> None:
    """Wait until the disk has files or folders; all at once, for they share a write."""
    from concurrent.futures import ThreadPoolExecutor  # a lookup has no use for it

    with ThreadPoolExecutor(len(paths)) as pool:
        list(pool.map(_sync_one, paths))


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes) -> None:
    """Write a whole file or none. Raises `OSError`."""
    draft = path.with_name(f".{path.name}.{os.getpid()}-{next(_serial)}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def replace_file(path: Path, content: bytes) -> None:
    """Write a whole file of a store or none. Raises `StoreUnwritableError`."""
    with translate_write_errors():
        write_whole(path, content)


def _open_fault(path: str, *, follow: bool, sticky_is_safe: bool) -> str:
    """Return why others could write this folder, or "" , also where there is none."""
    try:
        status = os.stat(path, follow_symlinks=follow)
    except NotADirectoryError:
        return f"{path} is not a folder"
    except OSError as error:
        return f"{path} is not a folder" if error.errno == errno.ELOOP else ""
    if not stat.S_ISDIR(status.st_mode):
        return f"{path} is not a folder"
    if status.st_mode & _SHARED and not (sticky_is_safe and status.st_mode & stat.S_ISVTX):
        return f"{path} can be written by others (mode {status.st_mode & 0o777:o})"
    if status.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to user {status.st_uid}, not to user {os.geteuid()}"
    return ""


class StoreLayout:
    """The folders of the store under one root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._root = str(root)  # a warm start has no time for Path
        self._store = f"{root}/{_VERSION}"
        self.prefix = f"{self._store}/"

    @classmethod
    def of_binary(cls, path: Path, key: str) -> StoreLayout | None:
        """Return the store whose entry of this key has this binary; None for another file."""
        root, is_entry, rest = str(path).rpartition(f"/{_VERSION}/{key[:2]}/{key}/{BINARY}")
        return cls(Path(root)) if is_entry and root and not rest else None

    @property
    def store(self) -> Path:
        return self.root / _VERSION

    def distrust(self) -> str:
        """Return why no code may be loaded from here, as others could replace it, or ""."""
        return _open_fault(self._store, follow=False, sticky_is_safe=False) or _open_fault(
            self._root, follow=True, sticky_is_safe=True
        )

    def entry(self, key: str) -> Path:
        return self.store / key[:2] / key

    def binary(self, key: str) -> str:
        return f"{self.prefix}{key[:2]}/{key}/{BINARY}"

    def path(self, name: str) -> Path:
        return self.store / name

    def folder(self, name: str) -> Path:
        """Return a working folder, made when it is missing. Raises `StoreUnwritableError`."""
        path = self.store / name
        with translate_write_errors():
            missing = not os.path.isdir(path)
            if missing:
                self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
                self.store.mkdir(exist_ok=True, mode=0o700)
            if reason := self.distrust():
                raise StoreUnwritableError(reason)
            if missing:
                path.mkdir(exist_ok=True, mode=0o700)
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "cannot be written", str(path))
        return path

    def entry_folders(self) -> Iterator[Path]:
        """Yield the folder of every entry, in no order."""
        for shelf in self._listed(self.store):
            if len(shelf.name) == 2 and not shelf.name.startswith("."):
                yield from (Path(entry.path) for entry in self._listed(Path(shelf.path)))

    def files(self, name: str) -> list[Path]:
        return [Path(entry.path) for entry in self._listed(self.store / name)]

    @staticmethod
    def _listed(folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return list(entries)
        except OSError:
            return []  # it is not there, or not for us to read
