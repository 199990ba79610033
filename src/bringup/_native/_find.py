"""Which library links the running torch: its key, and where one may lie.

A library belongs to one minor version of torch and one Python. Three places may have it: a folder
of this package that is called by the key, the package's own folder (what came with the install),
and the cache, where one is built when neither fits.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from bringup import settings
from bringup.errors import NativeLibraryError

__all__ = [
    "Key",
    "LibraryCandidate",
    "cache_folder",
    "candidates",
    "load",
    "module_file",
    "running_key",
    "source_digest",
    "source_folder",
]

MODULE = "bringup._native._torch"
VERSION_FILE = "torch_version"  # beside a library: the torch that it was built with
_SOURCES = ("CMakeLists.txt", "cmake", "include", "native")


class Key(NamedTuple):
    """What a library is built for.

    Attributes:
        torch: the minor version, "2.13".
        python: the Python tag, "cp311".
    """

    torch: str
    python: str

    def __str__(self) -> str:
        return f"torch-{self.torch}-{self.python}"


def minor(version: str) -> str:
    """ "2.13" of "2.13.0+cpu"."""
    return ".".join(version.split(".")[:2])


def running_key() -> Key:
    """The key of this process. Raises `NativeLibraryError` where torch cannot be imported."""
    try:
        import torch
    except ImportError as error:
        raise NativeLibraryError(
            f"torch cannot be imported ({error}): pip install torch==2.13.0"
        ) from error
    return Key(minor(torch.__version__), f"cp{sys.version_info[0]}{sys.version_info[1]}{_flags()}")


def _flags() -> str:
    return str(getattr(sys, "abiflags", ""))


class LibraryCandidate(NamedTuple):
    """A library file that may fit.

    Attributes:
        path: the file.
        torch: the minor version that it was built for; "" where only loading tells.
    """

    path: Path
    torch: str

    def incompatibility_reason(self, key: Key) -> str:
        """Why it cannot be the library of `key`, or ""."""
        if self.torch in ("", key.torch):
            return ""
        return f"{self.path} was built for torch {self.torch}, this is torch {key.torch}"


def candidates(key: Key, package_folder: Path) -> Iterator[LibraryCandidate]:
    """The libraries that there are for this Python, best first."""
    for folder in (package_folder / str(key), *_cached_folders(key)):
        if (path := module_file(folder)) is not None:
            yield LibraryCandidate(path, key.torch)
    if (path := module_file(package_folder)) is not None:
        version_file = path.parent / VERSION_FILE
        yield LibraryCandidate(
            path, minor(version_file.read_text().strip()) if version_file.is_file() else ""
        )


def module_file(folder: Path) -> Path | None:
    """The torch library in a folder, for this Python."""
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        if (path := folder / f"_torch{suffix}").is_file():
            return path
    return None


def _cached_folders(key: Key) -> Iterator[Path]:
    sources = source_folder()
    base = settings.cache_dir() / "native" / str(key)
    if sources is None or not base.is_dir():
        return
    folder = cache_folder(key, source_digest(sources))
    if folder.is_dir() and not distrust(folder):
        yield folder


def cache_folder(key: Key, digest: str) -> Path:
    """Where the library of these sources is kept once it is built."""
    return settings.cache_dir() / "native" / str(key) / digest[:16]


def distrust(folder: Path) -> str:
    """Why nothing may be loaded from a folder, or "": others could have put it there."""
    for place in (folder, folder.parent, folder.parent.parent):
        status = place.stat()
        if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
            return f"others than you may write {place}"
    return ""


def source_folder() -> Path | None:
    """The folder with CMakeLists.txt and the sources: of the install, or a checkout's root."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "source", package.parents[1]):
        if all((folder / name).exists() for name in _SOURCES):
            return folder
    return None


@cache
def source_digest(sources: Path) -> str:
    """SHA-256 over names and contents of everything that a library is built from."""
    import hashlib  # it loads OpenSSL

    digest = hashlib.sha256()
    for name in _SOURCES:
        place = sources / name
        for file in [place] if place.is_file() else sorted(place.rglob("*")):
            if file.is_file():
                digest.update(f"{file.relative_to(sources)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def load(candidate: LibraryCandidate, key: Key) -> ModuleType:
    """Loads a library. Raises `NativeLibraryError` when it cannot be, or is for another torch."""
    known = sys.modules.get(MODULE)
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(MODULE, candidate.path)
    assert spec is not None
    assert spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise NativeLibraryError(f"{candidate.path} cannot be loaded: {error}") from error
    built = minor(str(module.torch_version))
    if built != key.torch:
        sys.modules.pop(MODULE, None)  # where importing a library puts it by itself
        raise NativeLibraryError(
            f"{candidate.path} was built for torch {built}, this is torch {key.torch}"
        )
    sys.modules[MODULE] = module
    return module
