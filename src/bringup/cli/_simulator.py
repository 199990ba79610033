"""A model and its device, as commands that run it there begin; the simulator with its operators."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bringup import devices, settings
from bringup.cli._requirements import require_torch
from bringup.errors import DeviceError

if TYPE_CHECKING:
    from bringup.cli.trial.trial_model import Subject

_PACKAGE = "bringup_sim_ops"

_NO_DEVICES = ("cpu", "cuda", "eager", "compiled", "fused", "captured")

ModelTarget = Annotated[
    str, typer.Argument(metavar="PATH|module:factory", help="A Hugging Face folder, or a factory.")
]
ForwardOnly = Annotated[bool, typer.Option("--forward-only", help="Leave the gradients out.")]
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
def loaded_model(
    target: str, places: tuple[str, ...], driver: str | None, operators: bool
) -> Iterator[tuple[Subject, str]]:
    """Load the driver that `places` need, and the model, whose prints go to standard error."""
    require_torch()
    from bringup.cli.trial.trial_model import load_model

    unknown = [name for name in places if name.partition(":")[0] not in _NO_DEVICES]
    if unknown and devices.loaded() is None:
        devices.load_driver(driver or settings.driver() or "sim")
    with redirect_stdout(sys.stderr):
        subject = load_model(target)
        with _simulator_operators(operators) as whose:
            yield subject, whose


@contextmanager
def _simulator_operators(wanted: bool) -> Iterator[str]:
    """Give the simulator its operators in the block where it has none; yield `whose_kernels`."""
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
