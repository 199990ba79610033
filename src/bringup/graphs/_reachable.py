"""What captured code can reach from its frame: through functions, modules, containers and plain
objects. What generators and C++ objects hide is not found.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import CO_OPTIMIZED
from typing import Any

import torch

MOST_OBJECTS = 10_000
DEEPEST = 8
_CLOSED = {"torch", "bringup", "builtins", "os", "typing", "_pytest", "pytest", "numpy", "logging"}
"""Packages whose objects and functions are not looked into; modules and tensors always are."""
_PLAIN_KEYS = (str, int, float, bool, bytes, type(None))
_CONTAINERS: dict[type, Callable[[Any], Iterable[tuple[Any, Any]]]] = {
    dict: dict.items,
    list: lambda value: enumerate(list.__iter__(value)),
    tuple: lambda value: enumerate(tuple.__iter__(value)),
    deque: lambda value: enumerate(deque.__iter__(value)),
}
"""How to see what is in one: a class derived from it may do anything when it is iterated."""
_INTERNAL = frozenset(vars(torch.nn.Module()))

Found = tuple[str, Any, dict[str, Any]]
"""A value that captured code can reach: its name, itself, and what it held (see `held_by`)."""


def frame_values(frame: types.FrameType) -> dict[str, Any]:
    """Return the variables that code in this frame can name: locals, and globals it mentions."""
    while frame.f_back is not None and frame.f_globals.get("__name__") == "contextlib":
        frame = frame.f_back
    values = _mentioned_globals(frame.f_code, frame.f_globals)
    if frame.f_code.co_flags & CO_OPTIMIZED:
        values.update(local_variables(frame))
    return values


def local_variables(frame: types.FrameType) -> dict[str, Any]:
    """Return a copy of the variables of a function that runs."""
    variables = frame.f_locals
    copy = dict(variables)
    # Until 3.13 the frame keeps a dictionary, and with it what the function deletes. The function
    # itself may have it, from locals(): then the frame, the name here and the call are not all.
    if type(variables) is dict and sys.getrefcount(variables) <= 3:
        variables.clear()
    return copy


def reachable(values: Mapping[str, Any]) -> Iterator[Found]:
    """Yield tensors, modules, random generators and their holders behind values, nearest first."""
    seen: set[int] = set()
    waiting = deque((name, value, 0) for name, value in values.items())
    visited = 0
    while waiting and visited < MOST_OBJECTS:
        name, value, depth = waiting.popleft()
        if value is None or type(value) in (int, float, str, bool) or id(value) in seen:
            continue
        visited += 1
        seen.add(id(value))
        held = held_by(value) if depth < DEEPEST else {}
        yield name, value, held
        if depth < DEEPEST:
            waiting.extend((name + key, item, depth + 1) for key, item in held.items())
            waiting.extend((inner, item, depth + 1) for inner, item in _linked(name, value))


def held_by(value: Any) -> dict[str, Any]:
    """Return what an object's places hold, `{".weight": ...}`, `{"[0]": ...}`; running nothing."""
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        return {}
    if issubclass(kind, torch.nn.Module):
        return _held_by_module(value)
    held: dict[str, Any] = {}
    for container, items in _CONTAINERS.items():
        if issubclass(kind, container):
            held = {f"[{_key_text(key)}]": item for key, item in list(items(value))}
    if has_open_attributes(kind):
        held.update((f".{key}", item) for key, item in _attributes(value).items())
    return held


def can_hold_tensors(kind: type) -> bool:
    """Return whether such a value is a tensor or something that `held_by` looks into."""
    known = (torch.Tensor, torch.nn.Module, *_CONTAINERS)
    return issubclass(kind, known) or has_open_attributes(kind)


def has_open_attributes(kind: type) -> bool:
    """Return whether `held_by` looks at the attributes of such an object."""
    closed = issubclass(kind, (type, types.ModuleType, types.FunctionType))
    return not closed and not _is_closed(kind)


def _held_by_module(module: torch.nn.Module) -> dict[str, Any]:
    held = {}
    if issubclass(type(module), torch.jit.ScriptModule):  # keeps them in C++
        held.update(module.named_parameters(recurse=False))
        held.update(module.named_buffers(recurse=False))
        held.update(module.named_children())
    else:
        attributes = vars(module)
        for part in ("_parameters", "_buffers", "_modules"):
            held.update(attributes.get(part, {}))
        held.update((key, item) for key, item in attributes.items() if key not in _INTERNAL)
    return {f".{key}": item for key, item in held.items()}


_NO_SLOTS = ("__dict__", "__weakref__")


def _attributes(value: Any) -> dict[str, Any]:
    """Return the object's slots and dictionary without asking its class, which may be a proxy."""
    held: dict[str, Any] = {}
    for owner in reversed(type(value).__mro__):
        for name, entry in vars(owner).items():
            if type(entry) is types.MemberDescriptorType and name not in _NO_SLOTS:
                with contextlib.suppress(AttributeError):  # nothing in it
                    held[name] = entry.__get__(value)
    for owner in type(value).__mro__:
        entry = vars(owner).get("__dict__")
        if entry is not None:
            real = type(entry) in (types.GetSetDescriptorType, types.MemberDescriptorType)
            return {**held, **entry.__get__(value)} if real else held
    return held


def _key_text(key: Any) -> str:
    return repr(key) if type(key) in _PLAIN_KEYS else object.__repr__(key)


def _linked(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is reached through a value that keeps it for good."""
    kind = type(value)
    if issubclass(kind, (set, frozenset)):
        iterate = set.__iter__ if issubclass(kind, set) else frozenset.__iter__
        yield from ((name, item) for item in list(iterate(value)))
    elif issubclass(kind, functools.partial):
        yield from ((name, item) for item in (value.func, value.args, value.keywords))
    elif kind is types.MethodType:
        yield from ((name, item) for item in (value.__self__, value.__func__))
    elif kind is types.FunctionType:
        yield from _parts_of_function(name, value)


def _parts_of_function(name: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    yield from ((name, item) for item in vars(function).values())  # what a wrapper wraps
    if _is_closed(function):
        return
    for variable, cell in zip(
        function.__code__.co_freevars, function.__closure__ or (), strict=True
    ):
        try:
            yield variable, cell.cell_contents
        except ValueError:  # not bound yet
            continue
    yield name, function.__defaults__
    yield name, function.__kwdefaults__
    yield from _mentioned_globals(function.__code__, function.__globals__).items()


def _mentioned_globals(code: types.CodeType, variables: dict[str, Any]) -> dict[str, Any]:
    found = {name: variables[name] for name in code.co_names if name in variables}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):  # a function within
            found.update(_mentioned_globals(constant, variables))
    return found


def _is_closed(owner: type | types.FunctionType) -> bool:
    module = owner.__module__
    return isinstance(module, str) and module.partition(".")[0] in _CLOSED
