"""Pickling operators by name and defining module: a copy is the operator itself."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from bringup.errors import SchemaError

_finders: list[Callable[[str], Any]] = []


def find_operator_by(finder: Callable[[str], Any]) -> None:
    """Add `finder(name)`, which gives the callable of a defined operator, or None."""
    _finders.append(finder)


def reduced(name: str, module: str) -> tuple[Any, ...]:
    """Return what `__reduce__` returns for the operator `name`, defined by `module`."""
    return load_operator, (name, module)


def load_operator(name: str, module: str) -> Any:
    """Return the operator `name`, importing `module` to define it. Raises `SchemaError`."""
    if (found := _find(name)) is not None:
        return found
    tried = ""
    if module not in ("", "__main__", "__mp_main__"):
        try:
            importlib.import_module(module)
        except ImportError as error:
            tried = f"; its module {module} cannot be imported here: {error}"
        else:
            tried = f"; importing its module {module} did not define it"
    if (found := _find(name)) is not None:
        return found
    raise SchemaError(
        f"the operator {name} cannot be unpickled: it is not defined in this process{tried}; run "
        "or import what defines it first"
    )


def _find(name: str) -> Any:
    return next((f for finder in _finders if (f := finder(name)) is not None), None)
