"""Whether values of a captured call are what they were: numbers, tensors, snapshots of objects."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

from bringup._numbers import same_number
from bringup.graphs._copies import has_memory, shares_memory
from bringup.graphs._reachable import has_open_attributes, held_by

PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout)
_CONTAINERS = (dict, list, tuple, set, frozenset)
_WHOLE = (torch.Tensor, torch.nn.Module, type(None), *PLAIN)
"""What stands for itself."""
DEEPEST = 6
MOST_VALUES = 1000


def same_value(left: Any, right: Any) -> bool:
    """Return whether they are one plain value of one type, to the bit."""
    return isinstance(left, PLAIN) and same_number(left, right)


def same_view(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether they are the same elements in memory."""
    if left is right:
        return True
    return (
        left.device == right.device
        and left.layout == right.layout == torch.strided
        and shares_memory(left, right)
        and left.dtype == right.dtype
        and left.shape == right.shape
        and left.stride() == right.stride()
        and left.data_ptr() == right.data_ptr()
        and left.is_conj() == right.is_conj()
        and left.is_neg() == right.is_neg()
    )


def value_text(value: Any) -> str:
    """Return what it is, for an error."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"
    return f"{value!r} ({type(value).__name__})"


@dataclass(frozen=True, slots=True)
class _Object:
    """An object whose parts have paths of their own."""

    value: Any  # itself
    shown: bool  # whether its parts are all there is: then another one may have the same
    keys: tuple[str, ...] | None  # of a dictionary, in order

    def __str__(self) -> str:
        keys = "" if self.keys is None else f" of {', '.join(self.keys) or 'no keys'}"
        return f"a {type(self.value).__name__}{keys}" if self.shown else value_text(self.value)

    def stands_for(self, other: _Object) -> bool:
        same = self.value is other.value or (self.shown and type(self.value) is type(other.value))
        return same and self.keys == other.keys


@dataclass(frozen=True, slots=True)
class _Unread:
    """A tensor that the graph does not know: it can have used no more than what this says."""

    text: str

    def __str__(self) -> str:
        return self.text


class Snapshot:
    """What an object, no tensor and no plain value, held when it was made."""

    def __init__(self, value: Any) -> None:
        self._found = dict(_walk("", value))

    def settle(self, native: Any) -> None:
        """Let go after the capture of tensors that the graph does not know."""
        for path, value in self._found.items():
            if isinstance(value, torch.Tensor) and not native.knows(value):
                self._found[path] = _Unread(value_text(value))

    def difference(self, value: Any) -> tuple[str, str, str] | None:
        """Return the first path at which another object differs, and both values as text."""
        now = dict(_walk("", value))
        for path, was in self._found.items():
            if path not in now:
                return path, _words(was), "nothing"
            if not _same(was, now[path]):
                return path, _words(was), _words(now[path])
        added = next((path for path in now if path not in self._found), None)
        return None if added is None else (added, "not there", _words(now[added]))


def snapshots(values: Any) -> dict[int, Snapshot]:
    """Of every object in a nest of arguments that the nest does not take apart, by its id."""
    try:
        leaves = _pytree.tree_leaves(values)
    except Exception:  # of the user's classes: raised again, and told, where inputs are inferred
        return {}
    found: dict[int, Snapshot] = {}
    for leaf in leaves:
        if _has_parts(leaf) and id(leaf) not in found:
            found[id(leaf)] = Snapshot(leaf)
    return found


def _has_parts(value: Any) -> bool:
    """Return whether it holds something, or can."""
    kind = type(value)
    if issubclass(kind, _WHOLE):
        return False
    return issubclass(kind, _CONTAINERS) or (
        has_open_attributes(kind) and (kind.__dictoffset__ != 0 or bool(held_by(value)))
    )


def _parts(value: Any) -> dict[str, Any]:
    kind = type(value)
    if issubclass(kind, (set, frozenset)):
        iterate = set.__iter__ if issubclass(kind, set) else frozenset.__iter__
        return {f"{{{_member(item)}}}": item for item in iterate(value)}
    return held_by(value)


def _member(item: Any) -> str:
    return repr(item) if type(item) in PLAIN else object.__repr__(item)


def _walk(
    path: str, value: Any, above: tuple[int, ...] = (), budget: list[int] | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of everything in an object; an `_Object` for what is walked further."""
    budget = [MOST_VALUES] if budget is None else budget
    budget[0] -= 1
    if id(value) in above:
        yield path, f"<the object {len(above) - above.index(id(value))} levels up>"
    elif not _has_parts(value) or len(above) == DEEPEST or budget[0] <= 0:
        yield path, value
    else:
        kind, parts = type(value), _parts(value)
        keys = tuple(parts) if issubclass(kind, dict) else None
        yield path, _Object(value, _shows_all(kind, parts), keys)
        for key, item in parts.items():
            yield from _walk(path + key, item, (*above, id(value)), budget)


def _shows_all(kind: type, parts: dict[str, Any]) -> bool:
    """Return whether items and attributes are all there is, as for classes of Python."""
    if issubclass(kind, _CONTAINERS):
        return True
    plain = issubclass(kind, types.SimpleNamespace) or kind.__new__ is object.__new__
    return plain and bool(parts)


def _same(was: Any, now: Any) -> bool:
    if isinstance(was, _Object) and isinstance(now, _Object):
        return was.stands_for(now)
    if isinstance(was, _Unread):
        return isinstance(now, torch.Tensor) and value_text(now) == was.text
    if was is now or same_value(was, now):
        return True
    if not (isinstance(was, torch.Tensor) and isinstance(now, torch.Tensor)):
        return False
    return has_memory(was) and has_memory(now) and same_view(was, now)


def _words(value: Any) -> str:
    return str(value) if isinstance(value, (_Object, _Unread)) else value_text(value)
