"""The simulator's operators: a package of kernels that commands load with its driver."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from bringup import devices
from bringup.errors import DeviceError

_PACKAGE = "bringup_sim_ops"

Operators = Annotated[
    bool,
    typer.Option(
        "--operators/--no-operators",
        help=f"Where the driver is the simulator, load the kernels of {_PACKAGE}.",
    ),
]


def _package(driver: str | Path) -> Any:
    """Return the package of kernels if the driver is the simulator and it is there, else None."""
    if devices.driver_library(driver) != devices.driver_library("sim"):
        return None
    return importlib.import_module(_PACKAGE) if importlib.util.find_spec(_PACKAGE) else None


def load_function(driver: str | Path) -> str:
    """Return MODULE:FUNCTION that gives this driver's device its operators; "" if there is none."""
    return "" if _package(driver) is None else f"{_PACKAGE}:load"


def whose_kernels(driver: str | Path, *, loaded: bool, why_not: str = "") -> str:
    """Return what a headline on native operators has to say of the simulator; "" of others."""
    package = _package(driver)
    if package is None:
        return ""
    words = f"The simulator has no kernels of its own; {_PACKAGE} has {len(package.OPERATORS)}"
    return f"{words}." if loaded else f"{words}, left out{why_not}."


@contextmanager
def simulator_operators(wanted: bool) -> Iterator[str]:
    """In this block the simulator, if it is loaded, has its operators; gives `whose_kernels`.

    They are left out, with the reason, where the device has kernels of its own for one of them.
    """
    info = devices.loaded()
    package = None if info is None else _package(info.path)
    if info is None or package is None:
        yield ""
    elif not wanted:
        yield whose_kernels(info.path, loaded=False)
    else:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)  # it would replace the user's kernel
                package.load()
        except (DeviceError, UserWarning) as error:
            yield whose_kernels(info.path, loaded=False, why_not=f", others are there: {error}")
            return
        try:
            yield whose_kernels(info.path, loaded=True)
        finally:
            package.unload()
