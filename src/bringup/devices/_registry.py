"""Lazy attributes of `torch.<device>`, which other packages add before or after a driver loads."""

from __future__ import annotations

import importlib
from collections.abc import Callable

__all__ = ["GRAPHS", "names", "register_module_attribute", "resolve"]

_factories: dict[str, Callable[[], object]] = {}

GRAPHS = (
    "NPUGraph",
    "graph",
    "graph_task_group_begin",
    "graph_task_group_end",
    "graph_task_update_begin",
    "graph_task_update_end",
    "is_current_stream_capturing",
    "make_graphed_callables",
)
"""What `bringup.graphs` registers when it is imported, which asking for one of them does."""


def register_module_attribute(name: str, factory: Callable[[], object]) -> None:
    """Makes `factory()` the attribute `name` of the device module, made when first asked for.

    Args:
        name: an identifier, e.g. "graph" for `torch.npu.graph`.
        factory: called at most once a module; may import what it needs.

    Raises:
        ValueError: `name` is no identifier, or another factory has it.
    """
    if not name.isidentifier():
        raise ValueError(
            f"{name!r} cannot be an attribute of the device module: it is no identifier"
        )
    if _factories.setdefault(name, factory) is not factory:
        raise ValueError(f"the device module's attribute {name!r} is already registered")


def resolve(name: str) -> object:
    """The value of a registered attribute; `KeyError` for any other name."""
    if name in GRAPHS and name not in _factories:
        importlib.import_module("bringup.graphs")
    return _factories[name]()


def names() -> list[str]:
    """The names that `resolve` knows."""
    return sorted({*_factories, *GRAPHS})
