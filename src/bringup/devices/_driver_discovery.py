"""Drivers by name: on `BRINGUP_DRIVER_PATH`, and from packages with an entry point.

`name = package.module:attribute` in the group `bringup.drivers` leads to the path of the driver's
library, or to a function that returns it; the module may have the checks' device code.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

from bringup import _native, plugins, settings
from bringup.errors import BringupError, DriverError, NativeLibraryError, PluginError

ENTRY_POINT_GROUP = "bringup.drivers"
_KERNELS_ATTRIBUTE = "check_kernels"
_MODULE_ATTRIBUTE = "driver_path"  # of an entry point that names a module only


def driver_library(driver: str | Path) -> Path:
    """Return the shared library of a driver, given by path or by name.

    "sim" is the simulated NPU. Another name is `lib<name>.so` in the first folder of
    `BRINGUP_DRIVER_PATH` that has one, or the entry point of that name. Raises `DriverError`: there
    is none, with those that there are; or its package is broken.
    """
    if driver == "sim":
        return _native.sim_driver_path()
    path = Path(driver).expanduser()
    try:
        if path.is_file():
            return path.resolve()
    except OSError as error:
        raise DriverError(f"the driver {path} cannot be read: {error.strerror or error}") from error
    if isinstance(driver, Path) or "/" in driver or path.suffix:
        raise DriverError(f"there is no driver at {path}: expected the path of a shared library")
    return _library_by_name(driver)


def check_kernels(driver: str) -> Path | None:
    """Return the device code of the checks, or None: `check_kernels` of the entry point's module, a
    path or a function. Raises `DriverError` for a broken package or no such file.
    """
    for entry in plugins.entry_points(ENTRY_POINT_GROUP):
        if entry.name != driver:
            continue
        where = f"{_KERNELS_ATTRIBUTE!r} of the driver {driver!r}, entry point {entry.value}"
        try:
            plugins.entry_object(entry)
            given = getattr(sys.modules[entry.module], _KERNELS_ATTRIBUTE, None)
            path = given() if callable(given) else given
        except Exception as error:
            raise DriverError(f"{where}: {type(error).__name__}: {error}") from error
        if path is not None and not Path(path).is_file():
            raise DriverError(f"{where}: there is no file {path}")
        return None if path is None else Path(path).resolve()
    return None


def _library_by_name(name: str) -> Path:
    on_path, unreadable = _libraries_on_path()
    if name in on_path:
        return on_path[name].resolve()
    for entry in plugins.entry_points(ENTRY_POINT_GROUP):
        if entry.name == name:
            return _library_of(entry)
    known = ", ".join(repr(known) for known in _names())
    raise DriverError(
        f"there is no driver named {name!r}: expected the path of a shared library, or one of "
        f"{known} (the argument of load_driver, or BRINGUP_DRIVER). Names come from folders on "
        f"BRINGUP_DRIVER_PATH and from entry points in the group {ENTRY_POINT_GROUP!r}"
        + "".join(f". BRINGUP_DRIVER_PATH names {problem}" for problem in unreadable)
    )


def _libraries_on_path() -> tuple[dict[str, Path], list[str]]:
    """Return the first library of each name on the path, and unreadable folders with reasons."""
    found: dict[str, Path] = {}
    unreadable = []
    for folder in settings.driver_path():
        try:
            files = sorted(folder.iterdir())
        except OSError as error:
            unreadable.append(f"{folder}, which cannot be read: {error.strerror or error}")
            continue
        for file in files:
            if file.suffix == ".so" and file.stem.startswith("lib") and file.is_file():
                found.setdefault(file.stem.removeprefix("lib"), file)
    return found, unreadable


def installed_drivers() -> dict[str, Path | BringupError]:
    """Return every driver that has a name, with its library or what is wrong with its package."""
    found: dict[str, Path | BringupError] = {}
    for name in _names():
        try:
            found[name] = _native.sim_driver_path() if name == "sim" else _library_by_name(name)
        except (DriverError, NativeLibraryError) as error:
            found[name] = error
    return found


def _names() -> list[str]:
    names = dict.fromkeys(("sim", *_libraries_on_path()[0]))
    names.update(dict.fromkeys(entry.name for entry in plugins.entry_points(ENTRY_POINT_GROUP)))
    return list(names)


def _library_of(entry: EntryPoint) -> Path:
    where = f"the driver {entry.name!r} of entry point {entry.value}"
    try:
        given = plugins.entry_object(entry)
        if isinstance(given, ModuleType):
            given = getattr(given, _MODULE_ATTRIBUTE, given)
        path = given() if callable(given) else given
    except PluginError as error:
        raise DriverError(f"{where}: {plugins.with_traceback(error)}") from error
    except Exception as error:
        reason = PluginError(f"it raised {type(error).__name__}: {error}")
        reason.__cause__ = error
        raise DriverError(f"{where}: {plugins.with_traceback(reason)}") from error
    if not isinstance(path, (str, os.PathLike)):
        raise DriverError(
            f"{where}: expected the path of a shared library, or a function that returns it, got "
            f"{path!r}; a module gives it as its attribute {_MODULE_ATTRIBUTE!r}"
        )
    if not Path(path).is_file():
        raise DriverError(f"{where}: there is no file {path}")
    return Path(path).resolve()
