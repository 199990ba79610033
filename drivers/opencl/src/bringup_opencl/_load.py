"""Registering the kernels, and taking them out again."""

from __future__ import annotations

from pathlib import Path

import torch

from bringup import devices
from bringup.devices import OperatorKernel, OperatorTable
from bringup_opencl import _clblast, _dequantize
from bringup_opencl import _target as _target  # .cl is a language from here on
from bringup_opencl._operators import OPERATORS
from bringup_opencl._optimizers import optimizers

__all__ = ["load", "unload"]

_KERNELS = Path(__file__).parent / "kernels"
_tables: list[OperatorTable] = []  # that are loaded, and what is in front of the first


def load() -> dict[str, OperatorKernel]:
    """Give the device its kernels, and the library's where the setting wants them."""
    if not _tables:
        rows = (*OPERATORS, *optimizers(_has_float64()))
        for each in (rows, _clblast.operators()):
            _tables.append(OperatorTable(each, _KERNELS))
            try:
                _tables[-1].load()
            except BaseException:
                unload()
                raise
    _dequantize.register()
    loaded: dict[str, OperatorKernel] = _tables[0].load()
    return loaded


def _has_float64() -> bool:
    info = devices.loaded()
    if info is None:
        return True  # which the declarations refuse
    properties = torch.get_device_module(info.device_name).get_device_properties(0)
    return bool(properties.supports_float64)


def unload() -> None:
    """Take all of them out again."""
    while _tables:
        _tables.pop().unload()
