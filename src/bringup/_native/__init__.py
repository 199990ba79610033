"""The native libraries of bringup: finding them, and saying what is wrong when one is missing.

`core()` needs neither torch nor a compiler at run time; `torch_library()` imports torch and
refuses, with a reason, a library built for another torch.
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from types import ModuleType

from bringup.errors import NativeLibraryError

__all__ = ["core", "include_dir", "library_dir", "sim_driver_path", "torch_library"]

_REBUILD = "reinstall with `pip install --no-build-isolation .` (in the sources: `make build`)"


def library_dir() -> Path:
    """The folder that holds the native libraries (an editable install keeps them elsewhere)."""
    return Path(str(core().__file__)).parent


def include_dir() -> Path:
    """The folder to pass as `-I` for `bringup/kernel.h` and `bringup/driver.h`."""
    package = Path(__file__).parent.parent
    candidates = (package / "include", package.parent.parent / "include")
    for candidate in candidates:
        if (candidate / "bringup" / "kernel.h").is_file():
            return candidate
    raise NativeLibraryError(
        f"bringup's headers are in none of {[str(c) for c in candidates]}: {_REBUILD}"
    )


def sim_driver_path() -> Path:
    """The simulated NPU's driver."""
    path = library_dir() / "libbringup_sim.so"
    if not path.is_file():
        raise NativeLibraryError(f"the simulated NPU's driver is not at {path}: {_REBUILD}")
    return path


@cache
def core() -> ModuleType:
    """The module over runtime and engine. Raises `NativeLibraryError` when it cannot be loaded."""
    try:
        return importlib.import_module("bringup._native._core")
    except ImportError as error:
        raise NativeLibraryError(
            f"bringup's native core cannot be loaded ({error}): {_REBUILD}"
        ) from error


@cache
def torch_library() -> ModuleType:
    """The module that links libtorch. Raises `NativeLibraryError` when one does not fit."""
    try:
        import torch
    except ImportError as error:
        raise NativeLibraryError(
            f"torch cannot be imported ({error}): pip install torch==2.13.0"
        ) from error
    try:
        module = importlib.import_module("bringup._native._torch")
    except ImportError as error:
        raise NativeLibraryError(
            f"bringup's torch library cannot be loaded with torch {torch.__version__} ({error}): "
            f"{_REBUILD}"
        ) from error
    built = ".".join(str(module.torch_version).split(".")[:2])
    running = ".".join(torch.__version__.split(".")[:2])
    if built != running:
        raise NativeLibraryError(
            f"bringup's torch library was built for torch {built}, this is torch {running}: "
            f"{_REBUILD}"
        )
    return module
