"""Registering the table's kernels, and taking them out again."""

from __future__ import annotations

import threading
from pathlib import Path

from bringup import devices, jit
from bringup.devices import OperatorKernel
from bringup_sim_ops._operators import OPERATORS, Operator

__all__ = ["load", "unload"]

_KERNELS = Path(__file__).parent / "kernels"
# Integers wrap around, as on cpu.
_FLAGS = ("-fwrapv",)

_lock = threading.Lock()
_loaded: dict[str, OperatorKernel] = {}


def load() -> dict[str, OperatorKernel]:
    """Gives the loaded driver's device the kernels of `OPERATORS`; the same ones a second time.

    Nothing is compiled before it is called.

    Returns:
        The handle of each operator, by its name in the table.

    Raises:
        DeviceError: no driver is loaded, or other code has a kernel for one of the operators.
    """
    with _lock:
        if not _loaded:
            try:
                for operator in OPERATORS:
                    _loaded[operator.name] = _register(operator)
            except BaseException:
                _close_all()
                raise
        return dict(_loaded)


def unload() -> None:
    """Takes all of them out again: the operators fall back as before."""
    with _lock:
        _close_all()


def _close_all() -> None:
    while _loaded:
        _loaded.popitem()[1].close()


def _register(operator: Operator) -> OperatorKernel:
    if not operator.file:
        return devices.kernel(
            operator.name, expression=operator.entry, supports=operator.supports, flags=_FLAGS
        )
    path = _KERNELS / operator.file
    raw = operator.kind == "raw"
    return devices.kernel(
        operator.name,
        source=jit.Source(path, entry=operator.entry) if raw else path,
        kind=operator.kind,
        entry=None if raw else operator.entry,
        supports=operator.supports,
        dtypes=operator.dtypes,
        strided=operator.strided,
        flags=(*_FLAGS, *operator.flags),
    )
