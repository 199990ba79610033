"""What happens while kernels are found and built, for listeners; free of cost without any."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from bringup import settings

if TYPE_CHECKING:
    from bringup.jit.builder.request import Request


_log = settings.logger("jit")


class Asked(NamedTuple):
    """A kernel was asked for, from any place. Emitted once a call of `compile`."""

    request: Request


class CompileStarted(NamedTuple):
    """The compiler is about to run in this process. `key` is the request key."""

    request: Request
    key: str


class CompileFinished(NamedTuple):
    """The compiler built what `CompileStarted` announced, and it is published."""

    request: Request
    key: str
    seconds: float


class CompileFailed(NamedTuple):
    """What `CompileStarted` announced did not come about."""

    request: Request
    key: str
    error: BaseException


class Waiting(NamedTuple):
    """Another process builds this request. Emitted again every few seconds."""

    request: Request
    key: str
    seconds: float
    pid: int | None = None  # who builds, where the lock says so
    # When that began, in seconds since the epoch, where the lock says so.
    since: float | None = None


Event: TypeAlias = Asked | CompileStarted | CompileFinished | CompileFailed | Waiting
Listener: TypeAlias = Callable[[Event], None]
_KINDS: tuple[type[Event], ...] = (Asked, CompileStarted, CompileFinished, CompileFailed, Waiting)


_listeners: tuple[tuple[Listener, tuple[type[Event], ...]], ...] = ()
_changing = threading.Lock()


def _reset_lock() -> None:
    """Renew the lock in a forked child, whose parent's threads it lacks."""
    global _changing
    _changing = threading.Lock()


os.register_at_fork(after_in_child=_reset_lock)


def subscribe(listener: Listener, *kinds: type[Event]) -> Callable[[], None]:
    """Call `listener` with every event of these kinds, of all without any, on the thread where it
    happens; return what ends that. What it raises is logged and does not disturb the build.
    """
    global _listeners
    entry = listener, kinds or _KINDS  # an object of its own: a listener may be there twice
    with _changing:
        _listeners = (*_listeners, entry)

    def unsubscribe() -> None:
        global _listeners
        with _changing:
            _listeners = tuple(known for known in _listeners if known is not entry)

    return unsubscribe


def has_listeners(kind: type[Event]) -> bool:
    """Return whether an event of this kind has a listener; ask on hot paths."""
    return any(kind in kinds for _, kinds in _listeners)


def emit(event: Event) -> None:
    for listener, kinds in _listeners:
        if type(event) not in kinds:
            continue
        try:
            listener(event)
        except Exception:
            _log.exception("a listener of jit events failed on %s", type(event).__name__)
