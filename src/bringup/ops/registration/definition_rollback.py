"""Taking back whole what a plugin has registered on its thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_locks: dict[str, threading.RLock] = {}


def _after_fork() -> None:
    _locks.clear()  # a thread that is not in this process may have held one


os.register_at_fork(after_in_child=_after_fork)


def defining(name: str) -> threading.RLock:
    """Return the lock of those who define, replace or remove the operator `name`."""
    return _locks.setdefault(name, threading.RLock())


class Undefinable(Protocol):
    """An operator of `kernel_op` or `custom_op`."""

    @property
    def qualified_name(self) -> str:
        """`namespace::name`."""

    def undefine(self) -> None:
        """Remove it; nothing happens the second time."""


class _Collectors(threading.local):
    def __init__(self) -> None:
        self.open: list[list[Undefinable]] = []


_collectors = _Collectors()


def rehearsed(name: str) -> str:
    """Return the name under which a definition is tried before it replaces the operator `name`."""
    return f"{name.replace('.', '_')}_redefined"


def note(operator: Undefinable) -> None:
    for collector in _collectors.open:
        collector.append(operator)


@contextmanager
def collecting() -> Iterator[list[Undefinable]]:
    """Collect what this thread defines within it; an exception undefines all of that again."""
    collected: list[Undefinable] = []
    _collectors.open.append(collected)
    try:
        yield collected
    except BaseException:
        for operator in reversed(collected):
            operator.undefine()
        raise
    finally:
        _collectors.open.remove(collected)
