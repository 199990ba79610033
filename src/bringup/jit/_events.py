"""What happens while kernels are found and built, for whoever wants to know: progress, recordings,
diagnostics.

Owns the list of listeners and the events. Emitting costs one look at an empty tuple when nobody
listens.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from bringup import settings

if TYPE_CHECKING:
    from bringup.jit._build import Request

__all__ = [
    "Asked",
    "CompileFailed",
    "CompileFinished",
    "CompileStarted",
    "Event",
    "Listener",
    "Waiting",
    "emit",
    "has_listeners",
    "subscribe",
]

_log = settings.logger("jit")


@dataclass(frozen=True)
class Asked:
    """Somebody asked for a kernel, wherever it will come from. Emitted once a call of `compile`."""

    request: Request


@dataclass(frozen=True)
class CompileStarted:
    """The compiler is about to run in this process. `key` is the request key."""

    request: Request
    key: str


@dataclass(frozen=True)
class CompileFinished:
    """The compiler built what `CompileStarted` announced, and it is published."""

    request: Request
    key: str
    seconds: float


@dataclass(frozen=True)
class CompileFailed:
    """What `CompileStarted` announced did not come about."""

    request: Request
    key: str
    error: BaseException


@dataclass(frozen=True)
class Waiting:
    """Another process builds this request, and this one has waited for `seconds` so far. Emitted
    again every few seconds.

    Attributes:
        pid: who builds, where the lock says so.
        since: when that began, in seconds since the epoch, where the lock says so.
    """

    request: Request
    key: str
    seconds: float
    pid: int | None = None
    since: float | None = None


Event: TypeAlias = Asked | CompileStarted | CompileFinished | CompileFailed | Waiting
Listener: TypeAlias = Callable[[Event], None]

# One-element lists: the same listener may be there twice, and each entry is removed on its own.
_listeners: tuple[list[Listener], ...] = ()
_changing = threading.Lock()


def _reset_lock() -> None:
    """A forked child must not wait for a thread that only its parent has."""
    global _changing
    _changing = threading.Lock()


os.register_at_fork(after_in_child=_reset_lock)


def subscribe(listener: Listener) -> Callable[[], None]:
    """From now on `listener` is called with every event, on the thread where it happens. Returns
    what ends that.

    A listener may not raise: what it raises is logged and does not disturb the build.
    """
    global _listeners
    entry = [listener]
    with _changing:
        _listeners = (*_listeners, entry)

    def unsubscribe() -> None:
        global _listeners
        with _changing:
            _listeners = tuple(known for known in _listeners if known is not entry)

    return unsubscribe


def has_listeners() -> bool:
    """Whether an event would reach anybody: ask before building one on a hot path."""
    return bool(_listeners)


def emit(event: Event) -> None:
    """Tells every listener."""
    for (listener,) in _listeners:
        try:
            listener(event)
        except Exception:
            _log.exception("a listener of jit events failed on %s", type(event).__name__)
