"""What a call of a model leaves behind: found by looking, and put back before the next call."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterator, MutableMapping, MutableSequence
from typing import Any, Protocol

import torch

_MOST_OBJECTS = 200_000
_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device)
_OPAQUE = (
    type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType,
    torch.Generator,
)  # fmt: skip
_OF_MODULES = frozenset({"_parameters", "_buffers", "_modules"})  # no part of their members' names
_RANDOM = "torch's random numbers"


class _Item(Protocol):
    def changes(self) -> list[str]: ...

    def restore(self) -> None: ...


class State:
    """All that can be reached from some roots: tensors, containers and attributes, as they are now.

    Parameters are not copied, as they may be most of the memory: a write to one is found and stays.
    What lies in `__slots__`, sets, closures and module globals is not seen.
    """

    def __init__(self, **roots: Any) -> None:
        self._items: list[_Item] = []
        self._mutable: list[_Item] = []
        self._random = torch.get_rng_state()
        self._kept: list[Any] = []  # what is freed could give its address to another object
        seen: set[int] = set()
        agenda = deque(roots.items())
        while agenda and len(seen) < _MOST_OBJECTS:
            path, value = agenda.popleft()
            if isinstance(value, (*_PLAIN, *_OPAQUE)) or id(value) in seen:
                continue
            seen.add(id(value))
            self._kept.append(value)
            agenda.extend(self._visit(path, value))

    def _visit(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, torch.Tensor):
            self._items.append(_Tensor(path, value))
            return
        if isinstance(value, (tuple, frozenset)):
            yield from ((f"{path}[{number}]", item) for number, item in enumerate(value))
        elif isinstance(value, MutableMapping):
            yield from self._members(_Mapping(path, value, "[{!r}]"))
        elif isinstance(value, MutableSequence):
            yield from self._members(_Sequence(path, value))
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict):
            return
        for name, item in self._members(_Mapping(path, attributes, ".{}")):
            inner = name.rpartition(".")[2]
            if isinstance(value, torch.nn.Module) and inner in _OF_MODULES:
                yield from self._members(_Mapping(path, item, ".{}"))
            else:
                yield name, item

    def _members(self, container: _Mapping | _Sequence) -> Iterator[tuple[str, Any]]:
        self._items.append(container)
        return container.members()

    def changes(self) -> list[str]:
        """Return the paths of what differs since this was made; `restore` then puts it back."""
        found: dict[str, None] = {}
        for item in self._items:
            changed = item.changes()
            found.update(dict.fromkeys(changed))
            if changed and item not in self._mutable:
                self._mutable.append(item)
        if not torch.equal(torch.get_rng_state(), self._random):
            found[_RANDOM] = None
        return list(found)

    @property
    def lasting(self) -> list[str]:
        """Return the parameters among what `changes` has found, which are not put back."""
        return [item.path for item in self._mutable if isinstance(item, _Tensor) and item.is_weight]

    def restore(self) -> None:
        """Put back what `changes` has found, and the state of torch's random numbers."""
        with torch.no_grad():
            for item in self._mutable:
                item.restore()
        torch.set_rng_state(self._random)


class _Tensor:
    """A tensor, with a copy of what it held unless it is a parameter."""

    def __init__(self, path: str, tensor: torch.Tensor) -> None:
        self.path = path
        self.is_weight = isinstance(tensor, torch.nn.Parameter)
        self._tensor = tensor
        self._version = _version(tensor)
        self._saved = tensor if self.is_weight else tensor.detach().clone()

    def changes(self) -> list[str]:
        if self.is_weight:
            return [self.path] if _version(self._tensor) != self._version else []
        # what wrote past the version counter shows in the values alone
        same = self._tensor.shape == self._saved.shape and _equal(self._tensor, self._saved)
        return [] if same else [self.path]

    def restore(self) -> None:
        if self.is_weight:
            return
        if self._tensor.shape != self._saved.shape:
            self._tensor.resize_(self._saved.shape)
        self._tensor.copy_(self._saved)


class _Mapping:
    """A dictionary, or the attributes of an object; `step` forms the names of its members."""

    def __init__(self, path: str, mapping: MutableMapping[Any, Any], step: str) -> None:
        self._path = path
        self._mapping = mapping
        self._step = step
        self._saved = dict(mapping)

    def members(self) -> Iterator[tuple[str, Any]]:
        return ((self._path + self._step.format(key), item) for key, item in self._saved.items())

    def _differing(self) -> list[Any]:
        now, saved = self._mapping, self._saved
        return [
            key
            for key in dict.fromkeys((*saved, *now))
            if key not in now or key not in saved or not _same(now[key], saved[key])
        ]

    def changes(self) -> list[str]:
        return [self._path + self._step.format(key) for key in self._differing()]

    def restore(self) -> None:
        for key in self._differing():
            if key in self._saved:
                self._mapping[key] = self._saved[key]
            else:
                del self._mapping[key]


class _Sequence:
    def __init__(self, path: str, sequence: MutableSequence[Any]) -> None:
        self._path = path
        self._sequence = sequence
        self._saved = list(sequence)

    def members(self) -> Iterator[tuple[str, Any]]:
        return ((f"{self._path}[{number}]", item) for number, item in enumerate(self._saved))

    def changes(self) -> list[str]:
        now = self._sequence
        same = len(now) == len(self._saved) and all(map(_same, now, self._saved))
        return [] if same else [self._path]

    def restore(self) -> None:
        if self.changes():
            self._sequence.clear()
            self._sequence.extend(self._saved)


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else int(tensor._version)


def _equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether two tensors of one shape hold the same, NaN being NaN."""
    if left.is_quantized or left.layout != torch.strided:
        return _version(left) == 0
    equal = left == right
    if left.is_floating_point() or left.is_complex():
        equal |= left.isnan() & right.isnan()
    return bool(equal.all())


def _same(left: Any, right: Any) -> bool:
    if left is right:
        return True
    return type(left) is type(right) and isinstance(left, _PLAIN) and bool(left == right)
