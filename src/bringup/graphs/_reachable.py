"""What captured code can reach: from the frame that captures, through functions, modules,
containers and plain objects. What hides elsewhere (generators, C++ objects) is not found.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterator, Mapping
from inspect import CO_OPTIMIZED
from typing import Any

import torch

__all__ = ["frame_values", "reachable"]

_MOST_OBJECTS = 10_000
_DEEPEST = 8
_CLOSED = ("torch", "bringup", "builtins", "typing", "_pytest", "pytest", "numpy", "logging")
"""Packages whose objects and functions are not looked into; modules and tensors always are."""


def frame_values(frame: types.FrameType) -> dict[str, Any]:
    """The variables that code in this frame can name: locals, and globals that it mentions."""
    while frame.f_back is not None and frame.f_globals.get("__name__") == "contextlib":
        frame = frame.f_back
    values = _mentioned_globals(frame.f_code, frame.f_globals)
    if frame.f_code.co_flags & CO_OPTIMIZED:
        variables = frame.f_locals
        values.update(variables)
        # until 3.13 this is a copy, which would keep what the function deletes
        if type(variables) is dict:
            variables.clear()
    return values


def reachable(
    values: Mapping[str, Any],
) -> Iterator[tuple[str, torch.Tensor | torch.nn.Module | torch.Generator]]:
    """(name, value) of every tensor, module and random generator behind these values, nearest
    first, each once.
    """
    seen: set[int] = set()
    waiting = deque((name, value, 0) for name, value in values.items())
    visited = 0
    while waiting and visited < _MOST_OBJECTS:
        name, value, depth = waiting.popleft()
        if value is None or type(value) in (int, float, str, bool) or id(value) in seen:
            continue
        visited += 1
        seen.add(id(value))
        if isinstance(value, (torch.Tensor, torch.nn.Module, torch.Generator)):
            yield name, value
        if not isinstance(value, torch.Tensor) and depth < _DEEPEST:
            waiting.extend((inner, item, depth + 1) for inner, item in _parts(name, value))


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.nn.Module):
        held = vars(value)
        for part in ("_parameters", "_buffers", "_modules"):
            yield from ((f"{name}.{key}", item) for key, item in held.get(part, {}).items())
        yield from ((f"{name}.{key}", item) for key, item in held.items() if key[:1] != "_")
    elif isinstance(value, Mapping):
        if type(value).__module__ != "os":
            yield from ((f"{name}[{key!r}]", item) for key, item in list(value.items()))
    elif isinstance(value, (list, tuple, deque)):
        yield from ((f"{name}[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield from ((name, item) for item in list(value))
    elif isinstance(value, functools.partial):
        yield from ((name, item) for item in (value.func, value.args, value.keywords))
    elif isinstance(value, types.MethodType):
        yield from ((name, item) for item in (value.__self__, value.__func__))
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(name, value)
    elif not isinstance(value, (type, types.ModuleType)) and not _is_closed(type(value).__module__):
        yield from ((f"{name}.{key}", item) for key, item in getattr(value, "__dict__", {}).items())


def _parts_of_function(name: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    yield from ((name, item) for item in vars(function).values())  # what a wrapper wraps
    if _is_closed(function.__module__):
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


def _is_closed(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _CLOSED
