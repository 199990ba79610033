"""Drivers by name: on `BRINGUP_DRIVER_PATH`, and from packages with an entry point.

The entry point `name = package.module:attribute` in the group `bringup.drivers` leads to the path
of the driver's shared library, or to a function without arguments that returns it.
"""

from __future__ import annotations

import os
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

from bringup import _native, plugins, settings
from bringup.errors import BringupError, DriverError, NativeLibraryError, PluginError

__all__ = ["ENTRY_POINT_GROUP", "driver_library", "installed_drivers"]

ENTRY_POINT_GROUP = "bringup.drivers"
_MODULE_ATTRIBUTE = "driver_path"  # of an entry point that names a module only


def driver_library(driver: str | Path) -> Path:
    """The shared library of a driver, given by path or by name.

    "sim" is the simulated NPU. Another name is `lib<name>.so` in the first folder of
    `BRINGUP_DRIVER_PATH` that has one, or the entry point of that name.

    Raises:
        DriverError: there is none, with the names that there are; or its package is broken, with
            the traceback.
    """
    if driver == "sim":
        return _native.sim_driver_path()
    path = Path(driver).expanduser()
    if path.is_file():
        return path.resolve()
    if isinstance(driver, Path) or "/" in driver or path.suffix:
        raise DriverError(f"there is no driver at {path}: expected the path of a shared library")
    return _library_by_name(driver)


def _library_by_name(name: str) -> Path:
    for folder in settings.driver_path():
        if (path := folder / f"lib{name}.so").is_file():
            return path.resolve()
    for entry in plugins.entry_points(ENTRY_POINT_GROUP):
        if entry.name == name:
            return _library_of(entry)
    known = ", ".join(repr(known) for known in _names())
    raise DriverError(
        f"there is no driver named {name!r}: expected the path of a shared library, or one of "
        f"{known} (the argument of load_driver, or BRINGUP_DRIVER). Names come from folders on "
        f"BRINGUP_DRIVER_PATH and from entry points in the group {ENTRY_POINT_GROUP!r}"
    )


def installed_drivers() -> dict[str, Path | BringupError]:
    """Every driver that has a name, with its library or what is wrong with its package."""
    found: dict[str, Path | BringupError] = {}
    for name in _names():
        try:
            found[name] = _native.sim_driver_path() if name == "sim" else _library_by_name(name)
        except (DriverError, NativeLibraryError) as error:
            found[name] = error
    return found


def _names() -> list[str]:
    names = {"sim": None}
    for folder in settings.driver_path():
        names.update(dict.fromkeys(p.stem.removeprefix("lib") for p in folder.glob("lib*.so")))
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
        told = PluginError(f"it raised {type(error).__name__}: {error}")
        told.__cause__ = error
        raise DriverError(f"{where}: {plugins.with_traceback(told)}") from error
    if not isinstance(path, (str, os.PathLike)):
        raise DriverError(
            f"{where}: expected the path of a shared library, or a function that returns it, got "
            f"{path!r}; a module gives it as its attribute {_MODULE_ATTRIBUTE!r}"
        )
    if not Path(path).is_file():
        raise DriverError(f"{where}: there is no file {path}")
    return Path(path).resolve()
