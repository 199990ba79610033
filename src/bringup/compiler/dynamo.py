"""What the backend needs of Dynamo and torch that has no public name (of torch 2.13)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource
from torch._dynamo.symbolic_convert import InstructionTranslator


class NotFrozenError(Exception):
    """Why weights may change from call to call."""


def owned_in_evaluation(sources: Iterable[Any]) -> list[Any]:
    """Return those of Dynamo's sources that belong to modules, if all of these are in evaluation
    mode; a guard then compiles anew once one is not.

    Raises `NotFrozenError` with the reason if one is in training mode, or if it is not Dynamo that
    compiles.
    """
    output = getattr(_translator(), "output", None)
    if output is None:
        raise NotFrozenError("it is not Dynamo that compiles")
    owned: list[Any] = []
    roots: dict[Any, None] = {}
    known: dict[Any, Any] = {}
    for source in sources:
        owners = [item for item in _bases(source) if _is_module(item, output, known)]
        for owner in reversed(owners):
            if known[owner].training:
                kind = type(known[owner]).__name__
                raise NotFrozenError(f"{_text(owner)} ({kind}) is in training mode")
        if owners:
            owned.append(source)
            roots[owners[-1]] = None
    for root in roots:
        install_guard(AttrSource(root, "training").make_guard(GuardBuilder.CONSTANT_MATCH))
    return owned


def root_and_path(source: Any) -> tuple[str | None, str]:
    """Return Dynamo's word for a source's outermost module and what follows it, or None."""
    output = getattr(_translator(), "output", None)
    if output is None:
        return None, ""
    known: dict[Any, Any] = {}
    owners = [item for item in _bases(source) if _is_module(item, output, known)]
    if not owners:
        return None, ""
    root, whole = _text(owners[-1]), _text(source)
    return (root, whole[len(root) :]) if whole.startswith(root) else (None, "")


def root_named(name: str) -> Any:
    output = _translator().output
    return eval(name, {"L": output.local_scope, "G": output.global_scope})


def _translator() -> Any:
    try:
        return InstructionTranslator.current_tx()
    except AttributeError:  # nothing is being translated in this thread
        return None


def _bases(source: Any) -> Iterator[Any]:
    """Yield what a source is taken from, the nearest first."""
    base = getattr(source, "base", None)
    while base is not None:
        yield base
        base = getattr(base, "base", None)


def _is_module(source: Any, output: Any, known: dict[object, Any]) -> bool:
    if source not in known:
        known[source] = output.resolve_source_value(source)
    return isinstance(known[source], torch.nn.Module)


def _text(source: Any) -> str:
    name = source.name
    return str(name() if callable(name) else name)
