"""Registering the table's kernels, and taking them out again."""

from __future__ import annotations

import threading
from pathlib import Path

from bringup import devices, jit
from bringup.devices import OperatorKernel
from bringup_opencl import _target as _target  # .cl is a language from here on
from bringup_opencl._operators import OPERATORS, Operator

__all__ = ["load", "unload"]

_KERNELS = Path(__file__).parent / "kernels"

_lock = threading.Lock()
_loaded: dict[str, OperatorKernel] = {}


def load() -> dict[str, OperatorKernel]:
    """Give the loaded driver's device the kernels of `OPERATORS`, and those of the kit's pointwise
    table; the same ones a second time. Each is compiled at its first call.

    Returns:
        The handle of each operator, by its name.

    Raises:
        DeviceError: no driver is loaded, or other code has a kernel for one of the operators.
    """
    with _lock:
        if not _loaded:
            try:
                _loaded.update(devices.pointwise_kernels())
                for operator in OPERATORS:
                    _loaded[operator.name] = _register(operator)
            except BaseException:
                _close_all()
                raise
        return dict(_loaded)


def unload() -> None:
    """Take all of them out again: the operators fall back as before."""
    with _lock:
        _close_all()


def _close_all() -> None:
    while _loaded:
        _loaded.popitem()[1].close()


def _register(operator: Operator) -> OperatorKernel:
    if operator.expression is not None:
        return devices.kernel(
            operator.name, expression=operator.expression, supports=operator.supports
        )
    path = _KERNELS / operator.file
    if operator.kind != "raw":
        return devices.kernel(
            operator.name,
            source=path,
            kind=operator.kind,
            entry=operator.entry,
            supports=operator.supports,
        )
    return devices.kernel(
        operator.name,
        source=jit.Source(path, entry=operator.entry),
        kind="raw",
        supports=operator.supports,
        dtypes=operator.dtypes,
        strided=operator.strided,
        args=operator.args,
        grid=operator.grid,
        block=operator.block,
    )
