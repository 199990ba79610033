"""Which library links the running torch, by manifests in this package and in the cache."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from bringup import settings
from bringup._native import _manifest
from bringup._native._manifest import Artifact, minor
from bringup._native._manifest import source_digest as source_digest
from bringup.errors import NativeLibraryError

MODULE = "bringup._native._torch"
_WRITTEN_FOR = re.compile(r"TORCH_VERSION_MAJOR == (\d+) && TORCH_VERSION_MINOR == (\d+)")


class Key(NamedTuple):
    """What a library is built for."""

    torch: str  # the minor version, "2.13"
    python: str  # the ABI of the Python, "cp311"

    def __str__(self) -> str:
        return f"torch-{self.torch}-{self.python}"


def running_key() -> Key:
    """Return the key of this process. Raises `NativeLibraryError` where torch is not imported."""
    try:
        import torch
    except ImportError as error:
        raise NativeLibraryError(
            f"torch cannot be imported ({error}): pip install torch==2.13.0"
        ) from error
    return Key(minor(torch.__version__), _manifest.interpreter().abi)


class LibraryCandidate(NamedTuple):
    """A library file that may fit."""

    path: Path  # the file
    artifact: Artifact | None  # what its manifest says of it; None where there is no entry
    problem: str = ""  # why there is none

    def incompatibility_reason(self, key: Key, build_key: str = "") -> str:
        """Return why it cannot be the library of `key` beside a core of `build_key`, or ""."""
        if self.artifact is None:
            return self.problem
        runs = _manifest.interpreter()
        problem = self.artifact.incompatibility_reason(runs, key.torch, build_key)
        problem = problem or self.artifact.damage(self.path.parent)
        return f"{self.path} {problem}" if problem else ""


def candidates(key: Key, package_folder: Path) -> Iterator[LibraryCandidate]:
    """Yield the libraries that there are, best first: of this key, of the cache, of other keys."""
    mine = package_folder / str(key)
    others = sorted(folder for folder in package_folder.glob("torch-*") if folder != mine)
    for folder in (mine, *_cached_folders(key), *others):
        yield from in_folder(folder)


def in_folder(folder: Path) -> Iterator[LibraryCandidate]:
    """Yield the libraries of one folder, with what its manifest says of each."""
    files = sorted(folder.glob("_torch*.so"))
    try:
        listed = {artifact.file: artifact for artifact in _manifest.read(folder)}
    except ValueError as error:
        for path in files:
            yield LibraryCandidate(path, None, str(error))
        return
    for path in files:
        missing = f"{path} is not in a {_manifest.MANIFEST} beside it"
        artifact = listed.get(path.name)
        yield LibraryCandidate(path, artifact, "" if artifact else missing)


def core_build_key(package_folder: Path) -> str:
    """Return the build key of the native core; "" if it has no manifest (a plain cmake build)."""
    try:
        listed = _manifest.read(package_folder)
    except ValueError as error:
        raise NativeLibraryError(str(error)) from error
    return next((found.build_key for found in listed if found.file.startswith("_core")), "")


def package_folder() -> Path | None:
    """Return the folder of the native core, without loading it; None where there is none."""
    spec = importlib.util.find_spec("bringup._native._core")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def missing_core(folder: Path) -> str:
    """Return why there is no native core in the package's own folder for this Python."""
    if not folder.is_dir():
        return (
            f"{folder} is in an archive, from which nothing native is loaded: install it with pip"
        )
    try:
        listed = _manifest.read(folder)
    except ValueError as error:
        return str(error)
    for artifact in listed:
        if artifact.file.startswith("_core"):
            reason = artifact.incompatibility_reason(_manifest.interpreter(), "", "")
            return f"{folder / artifact.file} {reason or artifact.damage(folder)}"
    return f"{folder} has none"


def damage(package_folder: Path, names: tuple[str, ...] = ("",)) -> Iterator[str]:
    """Yield what is wrong with each native file of the package that begins with one of `names`."""
    for folder in (package_folder, *sorted(package_folder.glob("torch-*"))):
        try:
            listed = _manifest.read(folder)
        except ValueError as error:
            yield str(error)
            continue
        for artifact in listed:
            problem = artifact.damage(folder) if artifact.file.startswith(names) else ""
            if problem:
                yield f"{folder / artifact.file} {problem}"


def _cached_folders(key: Key) -> Iterator[Path]:
    sources = source_folder()
    if sources is None or not _is_folder(settings.cache_dir() / "native" / str(key)):
        return  # the digest reads all sources
    folder = cache_folder(key, source_digest(sources))
    if _is_folder(folder) and not distrust(folder):
        yield folder


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # of another user
        return False


def cache_folder(key: Key, digest: str) -> Path:
    """Return where the library of these sources is kept once it is built."""
    return settings.cache_dir() / "native" / str(key) / digest[:16]


def distrust(folder: Path) -> str:
    """Return why others could have put something to load into a folder, or ""."""
    for place in (folder, folder.parent, folder.parent.parent):
        try:
            status = place.stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            return str(error)
        if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
            return f"others than you may write {place}"
    return ""


def source_folder() -> Path | None:
    """Return the folder with CMakeLists.txt: the install's sources, or a checkout's root."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "source", package.parents[1]):
        if _manifest.is_source_folder(folder):
            return folder
    return None


def torch_of(sources: Path) -> str:
    """Return the minor version of torch that the sources are for, or ""."""
    header = sources / "native" / "torch" / "common" / "torch_private.h"
    found = _WRITTEN_FOR.search(header.read_text()) if header.is_file() else None
    return ".".join(found.groups()) if found else ""


def load(candidate: LibraryCandidate, key: Key) -> ModuleType:
    """Load a library. Raises `NativeLibraryError` when it cannot be, or is for another torch."""
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
