"""Registering the kernels, and taking them out again."""

from __future__ import annotations

from pathlib import Path

from bringup.devices import OperatorKernel, OperatorTable
from bringup_opencl import _clblast
from bringup_opencl import _target as _target  # .cl is a language from here on
from bringup_opencl._operators import OPERATORS

__all__ = ["load", "unload"]

_KERNELS = Path(__file__).parent / "kernels"
_TABLE = OperatorTable(OPERATORS, _KERNELS)
_libraries: list[OperatorTable] = []  # what is in front of them


def load() -> dict[str, OperatorKernel]:
    """Give the device its kernels, and the library's where the setting wants them."""
    in_front = OperatorTable(_clblast.operators(), _KERNELS)
    loaded: dict[str, OperatorKernel] = _TABLE.load()
    if not _libraries:
        try:
            in_front.load()
        except BaseException:
            _TABLE.unload()
            raise
        _libraries.append(in_front)
    return loaded


def unload() -> None:
    """Take all of them out again."""
    while _libraries:
        _libraries.pop().unload()
    _TABLE.unload()
