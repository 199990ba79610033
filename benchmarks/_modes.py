"""A model in each of our modes and by Inductor with freezing, all by the documented API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

__all__ = ["compiled", "first_results", "scope_of"]


def compiled(
    model: torch.nn.Module, mode: str, *, dynamic: bool | None = None
) -> Callable[..., object]:
    """In one of our modes, or by Inductor with freezing."""
    if mode == "inductor":
        return torch.compile(model, options={"freezing": True}, dynamic=dynamic)
    return torch.compile(model, backend="bringup", options={"mode": mode}, dynamic=dynamic)


def first_results(calls: Mapping[str, Callable[[], Tensor]]) -> dict[str, Tensor]:
    """What each gives at its second call; compiled here: Dynamo looks at the global option for
    freezing, whatever the options of `torch.compile` are.
    """
    results = {}
    for name, call in calls.items():
        with scope_of(name):
            call()
            results[name] = call().clone()
    return results


def scope_of(name: str) -> AbstractContextManager[object]:
    """What a form has to be compiled in."""
    from torch._inductor import config

    return config.patch(freezing=True) if name.startswith("inductor") else nullcontext()
