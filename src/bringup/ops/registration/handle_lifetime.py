"""Keeping the dispatcher's entry of an operator that something calls by its handle: torch frees it
with the last registration, and a call through a handle then runs whatever came to lie there.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from bringup.errors import ExpiredHandleError

REDEFINED = "defined again; call what the last definition returned"
UNDEFINED = "removed by undefine(); define it again to call it"

# Any registration keeps the entry. No tensor has this key, so nothing runs otherwise for it.
_KEY = "TESTING_ONLY_GenericWrapper"

_held: weakref.WeakValueDictionary[str, Held] = weakref.WeakValueDictionary()
_lock = threading.Lock()


class Held:
    """A registration that does nothing; it goes with this object."""

    def __init__(self, name: str) -> None:
        namespace, _, bare = name.partition("::")
        self._library = torch.library.Library(namespace, "FRAGMENT")
        self._library.m.impl(bare, _KEY, torch.library.fallthrough_kernel, False)


def hold(name: str) -> Held | None:
    """Return what keeps `ns::name[.overload]`; None if it stays. A removed one has no kernel."""
    if name not in torch.library._defs:
        return None
    with _lock:
        held = _held.get(name)
        if held is None:
            held = _held[name] = Held(name)
        return held


def destroy(library: torch.library.Library) -> None:
    """Take a library's registrations away, and its names out of torch's books now: torch does that
    when the object is collected, by when another library may have defined them again.
    """
    from torch.fx.operator_schemas import _SCHEMA_TO_SIGNATURE_CACHE

    torch.library.Library._destroy(library)
    names, kernels = library._op_defs, library._op_impls
    books = (torch.library._impls, kernels, torch.library._defs, names)
    torch.library._del_library(*books, [], None, _SCHEMA_TO_SIGNATURE_CACHE)
    names.clear()
    kernels.clear()


def hold_for_users(name: str, instead: Callable[..., Any]) -> None:
    """Hold an entry about to be removed for objects of `torch.ops`: they call `instead`."""
    namespace, _, rest = name.partition("::")
    bare, _, overload = rest.partition(".")
    space = getattr(torch.ops, namespace)
    packet = vars(space).get(bare)
    operator = packet and vars(packet).get(overload or "default")
    if operator is None or (held := hold(name)) is None:
        return
    is_last = packet.overloads() == [operator._overloadname]
    for entry in (packet, operator) if is_last else (operator,):
        entry._op = _unless_defined_again(name, entry._op, instead)
    if not is_last:
        packet._op = lambda *a, **k: getattr(space, bare)(*a, **k)
    for entry in (packet, operator):
        vars(entry).setdefault("_bringup_held", []).append(held)


def _unless_defined_again(
    name: str, former: Callable[..., Any], instead: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a call of `instead`, with its held entry, until the operator is redefined."""

    def call(*args: Any, **kwargs: Any) -> Any:
        chosen = former if name in torch.library._defs else instead
        return chosen(*args, **kwargs)

    return call


def expired(name: str, reason: str) -> Callable[..., Any]:
    """Return what a call of a removed operator runs: it raises and says why."""

    def call(*_: Any, **__: Any) -> Any:
        raise ExpiredHandleError(f"{name} was {reason}")

    return call
