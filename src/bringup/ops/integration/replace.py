"""`replace_modules`: layers of a model run other functions as their `forward`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import torch

from bringup.errors import did_you_mean

Forward: TypeAlias = Callable[..., Any]
_ABSENT = object()


@dataclass(frozen=True)
class _Swap:
    """One module whose forward was replaced."""

    module: torch.nn.Module
    label: str
    ours: partial[Any]
    former: object  # the module's own `forward` attribute, or _ABSENT

    def undo(self) -> None:
        if self.former is _ABSENT:
            del self.module.forward
        else:
            self.module.forward = self.former


@dataclass(repr=False)
class Replacement:
    """What `replace_modules` did. As a context manager it is undone at the end of the block.

    Attributes:
        counts: how many modules run each function, by the name of the class, as it was given.
        names: the paths of these modules in the model, in its order.
    """

    counts: Mapping[str, int]
    names: tuple[str, ...]
    _swaps: list[_Swap] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Return how many modules were replaced."""
        return len(self.names)

    @property
    def active(self) -> bool:
        """Return whether it is in force."""
        return bool(self._swaps)

    def undo(self) -> None:
        """Give every module its own forward back. Does nothing the second time. Raises
        `RuntimeError`: a forward was replaced again since; nothing is undone then.
        """
        for swap in self._swaps:
            if swap.module.__dict__.get("forward") is not swap.ours:
                raise RuntimeError(
                    f"cannot undo the replacement of a {swap.label}: its forward was replaced "
                    "again since; undo that one first"
                )
        while self._swaps:
            self._swaps.pop().undo()

    def __enter__(self) -> Replacement:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        counted = ", ".join(f"{name} x {count}" for name, count in self.counts.items())
        return f"<Replacement of {counted}{'' if self.active else ', undone'}>"


def replace_modules(
    model: torch.nn.Module, functions: Mapping[str | type[torch.nn.Module], Forward]
) -> Replacement:
    """Let layers of a model run other functions, without touching its code, weights or structure.

        ours = lambda layer, x: rms_norm(x, layer.weight, layer.eps)
        ops.replace_modules(model, {"LlamaRMSNorm": ours})

    Args:
        model: the model; it is changed in place.
        functions: by the class of a layer (its name, or the class itself; subclasses are other
            classes), what its `forward` becomes: a function of the layer and forward's arguments.

    Returns:
        What was replaced, with counts; `undo()` takes it back.

    Raises:
        ValueError: the model has no layer of a class, or two keys mean the same one. Nothing is
            replaced then.
        TypeError: a key or a function cannot be what it says.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"replace_modules: expected a torch.nn.Module, got {type(model).__name__}")
    modules = dict(model.named_modules())
    plan = _plan(type(model).__name__, {type(module) for module in modules.values()}, functions)
    meant = {name: module for name, module in modules.items() if type(module) in plan}
    result = Replacement(
        MappingProxyType(Counter(plan[type(module)][0] for module in meant.values())), tuple(meant)
    )
    try:
        for module in meant.values():
            label, function = plan[type(module)]
            ours, former = partial(function, module), module.__dict__.get("forward", _ABSENT)
            module.forward = ours
            result._swaps.append(_Swap(module, label, ours, former))
    except BaseException:
        result.undo()
        raise
    return result


def _plan(
    model: str,
    kinds: set[type[torch.nn.Module]],
    functions: Mapping[str | type[torch.nn.Module], Forward],
) -> dict[type[torch.nn.Module], tuple[str, Forward]]:
    """By class, what to call it and what it shall run."""
    plan: dict[type[torch.nn.Module], tuple[str, Forward]] = {}
    for key, function in functions.items():
        label = key if isinstance(key, str) else getattr(key, "__name__", "")
        if not isinstance(key, str) and not (
            isinstance(key, type) and issubclass(key, torch.nn.Module)
        ):
            raise TypeError(
                "replace_modules: expected the name of a class of modules, or the class, "
                f"got {key!r}"
            )
        if not callable(function):
            raise TypeError(
                f"replace_modules: {label!r}: expected a function of the layer and forward's "
                f"arguments, got {type(function).__name__} ({function!r})"
            )
        meant = [kind for kind in kinds if (kind.__name__ == key if label is key else kind is key)]
        if not meant:
            raise ValueError(f"replace_modules: {_missing(model, label, kinds)}")
        for kind in meant:
            if kind in plan:
                raise ValueError(
                    f"replace_modules: two keys mean the same class, {label!r}; give one"
                )
            plan[kind] = (label, function)
    return plan


def _missing(model: str, label: str, kinds: set[type[torch.nn.Module]]) -> str:
    names = sorted({kind.__name__ for kind in kinds})
    hint = did_you_mean(label, names) or f"; it has {', '.join(names)}"
    return f"a {model} has no layer of class {label!r}{hint}"
