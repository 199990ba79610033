"""Other ways of running a module on the same device: compiled, rewritten by passes, captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from bringup import compiler, graphs
from bringup.errors import ModelError

VARIANTS = ("compiled", "fused", "captured")


def make_variant(
    name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Return the module as "compiled" (Inductor), "fused" (our backend) or "captured", which
    changes it. Later calls have arguments like these. Raises `ModelError` for another name.
    """
    if name == "captured":
        return _captured(module, args, kwargs)
    if name not in VARIANTS:
        raise ModelError(f"{name!r} is no form of a model: expected one of {', '.join(VARIANTS)}")
    torch._dynamo.reset()
    backend = "inductor" if name == "compiled" else compiler.dynamo_backend
    compiled: Callable[..., Any] = torch.compile(module, backend=backend)
    return compiled


class _OfTensors(nn.Module):  # type: ignore[misc]  # torch has no types here
    """A module called with the tensors among its arguments; the rest is as it was."""

    def __init__(self, module: nn.Module, leaves: list[Any], spec: Any) -> None:
        super().__init__()
        self.module = module
        self._others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self._spec = spec

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors of the result, in order."""
        leaves = list(self._others)
        for place, tensor in zip(self._places, given, strict=True):
            leaves[place] = tensor
        args, kwargs = _pytree.tree_unflatten(leaves, self._spec)
        result = self.module(*args, **kwargs)
        return tuple(leaf for leaf in _pytree.tree_leaves(result) if isinstance(leaf, Tensor))


def _captured(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    leaves, spec = _pytree.tree_flatten((args, kwargs))
    given = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
    inner = _OfTensors(module, leaves, spec).train(module.training)
    graphed = graphs.make_graphed_callables(inner, given, allow_unused_input=True)

    def call(*args: Any, **kwargs: Any) -> Any:
        found = _pytree.tree_leaves((args, kwargs))
        return graphed(*(leaf for leaf in found if isinstance(leaf, Tensor)))

    return call
