"""The native libraries of bringup: finding them, and saying what is wrong when one is missing.

`core()` needs neither torch nor a compiler at run time. The library that links libtorch is one for
each torch minor and Python: `torch_library()` finds it or builds it once into the cache. Where that
cannot be, or `BRINGUP_NATIVE=0` says so, the process runs without it: `has_torch_library()` is
False, and what needs the library raises one sentence when it is used, never at import.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from bringup import settings
from bringup._native import _compatibility, _find
from bringup.errors import NativeLibraryError

if TYPE_CHECKING:
    from bringup._native import _build

__all__ = [
    "TorchLibrary", "core", "core_damage", "forget_torch_library", "has_torch_library",
    "include_dir", "library_dir", "sim_driver_path", "torch_library", "torch_library_status",
]  # fmt: skip

_ASKED_FOR = "BRINGUP_NATIVE=0 asks for that"
_OF_CORE = ("_core", "libbringup_engine", "libbringup_runtime")
_REBUILD = "reinstall with `pip install --no-build-isolation .` (in the sources: `make build`)"


def library_dir() -> Path:
    """Return the folder of the native libraries (an editable install keeps them elsewhere)."""
    return Path(str(core().__file__)).parent


def include_dir() -> Path:
    """Return the folder to pass as `-I` for `bringup/kernel.h` and `bringup/driver.h`."""
    package = Path(__file__).parent.parent
    candidates = (package / "include", package.parent.parent / "include")
    for candidate in candidates:
        if (candidate / "bringup" / "kernel.h").is_file():
            return candidate
    raise NativeLibraryError(
        f"bringup's headers are in none of {[str(c) for c in candidates]}: {_REBUILD}"
    )


def sim_driver_path() -> Path:
    """Return the simulated NPU's driver."""
    path = library_dir() / "libbringup_sim.so"
    if not path.is_file():
        raise NativeLibraryError(f"the simulated NPU's driver is not at {path}: {_REBUILD}")
    return path


@cache
def core() -> ModuleType:
    """Return the module over runtime and engine; `NativeLibraryError` when it cannot be loaded."""
    found = importlib.util.find_spec("bringup._native._core")
    if found is not None and found.origin is not None and found.name not in sys.modules:
        problem = _compatibility.mismatch(Path(found.origin))
        if problem:
            raise NativeLibraryError(f"bringup's native core cannot be loaded: {problem}")
    try:
        return importlib.import_module("bringup._native._core")
    except ImportError as error:
        why = core_damage() or f"bringup's native core cannot be loaded ({error}): {_REBUILD}"
        raise NativeLibraryError(why) from error


def core_damage() -> str:
    """Return what is wrong with the files of the native core, or "". Loads nothing."""
    folder = _find.package_folder()
    if folder is None:
        problems = [_find.missing_core(Path(__file__).parent)]
    else:
        problems = list(_find.damage(folder, _OF_CORE))
    if not problems:
        return ""
    return f"bringup's native core cannot be loaded: {'; '.join(problems)}: {_REBUILD}"


@dataclass(frozen=True)
class TorchLibrary:
    """What this process has decided about the library that links libtorch."""

    key: str  # torch minor and Python tag, e.g. "torch-2.13-cp311".
    module: ModuleType | None = None  # the library, or None where there is none
    reason: str = ""  # why there is none


_decided: TorchLibrary | None = None
_deciding = threading.RLock()


def _after_fork() -> None:
    """Renew the lock in a forked child, whose parent's threads it lacks."""
    global _deciding
    _deciding = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def torch_library(feature: str = "this") -> ModuleType:
    """Return the module that links libtorch: found, or built once into the cache.

    Args:
        feature: what needs it, for the error.

    Raises:
        NativeLibraryError: torch is missing, or this process runs without the library.
    """
    decided = _decide()
    if decided.module is None:
        raise NativeLibraryError(
            f"{feature} needs bringup's native torch library, and this process runs without it: "
            f"{decided.reason} (`bringup doctor` says how to get it)"
        )
    return decided.module


def has_torch_library() -> bool:
    """Return whether the library is there; decided once a process, and said where it is not. Raises
    `NativeLibraryError`: torch is missing; or there is no library and `BRINGUP_NATIVE=1` demands
    it.
    """
    return _decide().module is not None


def torch_library_status() -> TorchLibrary:
    """Return what `torch_library` would find, building nothing; raises without torch."""
    if _decided is not None:
        return _decided
    key = _find.running_key()
    if settings.native() == "none":
        return TorchLibrary(str(key), None, _ASKED_FOR)
    module, refused = _load_first(key)
    if module is not None:
        return TorchLibrary(str(key), module)
    from bringup._native import _build

    recipe, problem = recipe_for(key)
    if recipe is not None:
        problem = _build.remembered_failure(recipe) or "it is built at first use"
    return TorchLibrary(str(key), None, _text(key, [*refused, problem]))


def forget_torch_library() -> None:
    """Let the next call decide again (for tests)."""
    global _decided
    _decided = None


def _decide() -> TorchLibrary:
    global _decided
    if _decided is not None:
        return _decided
    with _deciding:
        if _decided is None:
            _decided = _find_or_build()
        return _decided


def _find_or_build() -> TorchLibrary:
    key = _find.running_key()
    choice = settings.native()
    if choice == "none":
        return _without(key, _ASKED_FOR)
    module, refused = _load_first(key)
    if module is None:
        module, problem = _built(key)
        refused.append(problem)
    if module is not None:
        return TorchLibrary(str(key), module)
    reason = _text(key, refused)
    if choice == "required":
        raise NativeLibraryError(f"{reason} (BRINGUP_NATIVE=1 demands it)")
    return _without(key, reason)


def _text(key: _find.Key, reasons: list[str]) -> str:
    return f"there is none for {key}: {'; '.join(reasons)}"


def _load_first(key: _find.Key) -> tuple[ModuleType | None, list[str]]:
    """Return the first library that fits, and why those before it do not."""
    refused: list[str] = []
    package_folder = library_dir()  # loads the shared runtime first
    build_key = _find.core_build_key(package_folder)
    for candidate in _find.candidates(key, package_folder):
        problem = candidate.incompatibility_reason(key, build_key)
        if not problem:
            try:
                return _find.load(candidate, key), refused
            except NativeLibraryError as error:
                problem = str(error)
        refused.append(problem)
    return None, refused


def recipe_for(key: _find.Key) -> tuple[_build.Recipe | None, str]:
    """Return what builds the library, or why it cannot be built here."""
    sources = _find.source_folder()
    if sources is None:
        return None, f"this installation has no sources to build it from: {_REBUILD}"
    written_for = _find.torch_of(sources)
    if written_for not in ("", key.torch):
        return None, (
            f"its sources use private members of torch {written_for}, this is torch {key.torch}: "
            f"pip install torch=={written_for}.0"
        )
    if not sources.is_relative_to(Path(__file__).resolve().parents[1]):
        return None, "this is a checkout of the sources: `make build` builds it"
    from bringup._native import _build  # only here, as it loads what starts programs

    if missing := _build.missing_tools():
        return None, f"it cannot be built here: {missing}"
    import torch

    digest = _find.source_digest(sources)
    folder = _find.cache_folder(key, digest)
    if distrust := _find.distrust(folder):
        return None, (
            f"it is not built, as nothing may be loaded from {folder}: {distrust}; set "
            "BRINGUP_CACHE_DIR to a folder of your own"
        )
    name = f"bringup's native library for {key}"
    return _build.torch_recipe(name, sources, folder, digest, torch.__version__), ""


def _built(key: _find.Key) -> tuple[ModuleType | None, str]:
    recipe, problem = recipe_for(key)
    if recipe is None:
        return None, problem
    from bringup._native import _build

    try:
        path = _build.obtain(recipe)
        candidate = next(found for found in _find.in_folder(path.parent) if found.path == path)
        if problem := candidate.incompatibility_reason(key, _find.core_build_key(library_dir())):
            return None, problem
        return _find.load(candidate, key), ""
    except NativeLibraryError as error:
        return None, str(error)


def _without(key: _find.Key, reason: str) -> TorchLibrary:
    settings.logger("native").warning(
        "bringup runs without its native torch library (%s): kernel operators are defined and "
        "traced, but not run; devices, captured graphs and the shipped passes are not available",
        reason,
    )
    return TorchLibrary(str(key), None, reason)
