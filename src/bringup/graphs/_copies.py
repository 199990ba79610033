"""Copies of tensors in and out of fixed memory, with the strides that they have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch.utils import _pytree

__all__ = ["ResultNest", "copied", "fill", "shares_memory"]

_PLAIN = (
    bool, int, float, complex, str, bytes, type(None),
    torch.dtype, torch.device, torch.layout, torch.memory_format, type,
)  # fmt: skip


def copied(tensor: Any) -> Any:
    """A tensor of its own memory and the same strides, without gradient; also of one that overlaps
    itself.
    """
    with torch.no_grad():
        if torch.ops.aten.is_non_overlapping_and_dense(tensor):
            return tensor.detach().clone(memory_format=torch.preserve_format)
        return _flat(tensor).clone().as_strided(tensor.shape, tensor.stride())


def fill(target: Any, source: Any) -> None:
    """Copies `source` into `target`, of the same shape.

    Raises:
        ValueError: `target` repeats elements (an expanded tensor), and `source` may differ in them.
    """
    repeated = [d for d, n in enumerate(target.shape) if n > 1 and target.stride(d) == 0]
    for dim in repeated:
        if source.stride(dim) != 0:
            raise ValueError("it has one element in memory for many")
        target, source = target.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
    # A tensor from inference mode may be written there only.
    inference = target.is_inference()
    with torch.inference_mode() if inference else torch.no_grad():
        target.copy_(source)


def shares_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have one storage."""
    address = tensor.untyped_storage().data_ptr()
    return address != 0 and bool(address == other.untyped_storage().data_ptr())


class ResultNest:
    """A nest of results (tensors in tuples, lists, dicts, dataclasses and what is registered with
    torch's pytree), to be copied as a whole.

    Attributes:
        obstacle: why it cannot be copied, or None.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self._leaves, self._spec = _pytree.tree_flatten(value)
        self.obstacle = next(filter(None, map(_obstacle, self._leaves)), None)

    def tensors(self) -> list[torch.Tensor]:
        """All tensors, in order."""
        found: list[torch.Tensor] = []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            found.append(tensor)
            return tensor

        self._mapped(keep)
        return found

    def copied(self) -> Any:
        """The same nest with copies of its tensors."""
        return self._mapped(copied)

    def _mapped(self, change: Callable[[Any], Any]) -> Any:
        leaves = [_mapped_leaf(leaf, change) for leaf in self._leaves]
        return _pytree.tree_unflatten(leaves, self._spec)


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _obstacle(leaf: Any) -> str | None:
    if isinstance(leaf, (torch.Tensor, *_PLAIN)):
        return None
    if _is_record(leaf):
        nested = (ResultNest(getattr(leaf, field.name)).obstacle for field in fields(leaf))
        return next(filter(None, nested), None)
    return f"a {type(leaf).__qualname__}, which may hold tensors of the graph"


def _mapped_leaf(leaf: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(leaf, torch.Tensor):
        return change(leaf)
    if not _is_record(leaf):
        return leaf
    record = object.__new__(type(leaf))
    for name, value in vars(leaf).items():
        object.__setattr__(record, name, value)
    for field in fields(leaf):
        nest = ResultNest(getattr(leaf, field.name))
        object.__setattr__(record, field.name, nest._mapped(change))
    return record


def _flat(tensor: Any) -> Any:
    """All memory from a tensor's first element to its last."""
    if tensor.numel() == 0:
        return tensor.detach().reshape(-1)
    extent = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.detach().as_strided((extent,), (1,))
