"""Registering the table's kernels, and taking them out again."""

from __future__ import annotations

from pathlib import Path

from bringup.devices import OperatorKernel, OperatorTable
from bringup_sim_ops._operators import OPERATORS

__all__ = ["load", "unload"]

# Integers wrap around, as on cpu.
_TABLE = OperatorTable(OPERATORS, Path(__file__).parent / "kernels", ("-fwrapv",))


def load() -> dict[str, OperatorKernel]:
    """Give the loaded driver's device the kernels of `OPERATORS`; the same ones a second time.

    Returns:
        The handle of each operator, by its name in the table.

    Raises:
        DeviceError: no driver is loaded, or other code has a kernel for one of the operators.
    """
    loaded: dict[str, OperatorKernel] = _TABLE.load()
    return loaded


def unload() -> None:
    """Take all of them out again: the operators fall back as before."""
    _TABLE.unload()
