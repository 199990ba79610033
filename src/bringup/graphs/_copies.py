"""Copies of tensors in and out of fixed memory, with the strides that they have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch.utils import _pytree

from bringup._native import torch_library

_PLAIN = (
    bool, int, float, complex, str, bytes, type(None),
    torch.dtype, torch.device, torch.layout, torch.memory_format, type,
)  # fmt: skip


def copied(tensor: Any) -> Any:
    """Return a tensor of its own memory and the same strides, without gradient."""
    return torch_library("copying a tensor of a captured graph").graphs.copied(tensor)


def repeated_dims(tensor: torch.Tensor) -> list[int]:
    """Return the expanded dimensions: one element in memory stands for many."""
    return [d for d, n in enumerate(tensor.shape) if n > 1 and tensor.stride(d) == 0]


def shares_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors' storages overlap, which NumPy's may though distinct."""
    native = torch_library("comparing tensors of a captured graph")
    return bool(native.graphs.share_memory(tensor, other))


def overlaps_itself(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether elements may share memory beside `repeated_dims`, as in `unfold`."""
    reach = 0
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if size > 1 and stride != 0:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def has_memory(tensor: torch.Tensor) -> bool:
    """Return whether it is strided, over memory of its own or of another tensor."""
    try:
        tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return False  # sparse, fake, a functorch wrapper
    return bool(tensor.layout == torch.strided and not tensor.is_quantized)


def storage_address(tensor: torch.Tensor) -> int:
    """Return where its storage lies, 0 when it has none."""
    return int(tensor.untyped_storage().data_ptr()) if has_memory(tensor) else 0


class ResultNest:
    """A nest `value` of results, of what torch's pytree knows and dataclasses, which is copied as a
    whole: its `tensors` in order, and why that cannot be (`obstacle`), or None.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        leaves, self._spec = _pytree.tree_flatten(value)
        self._leaves = [_DataclassLeaf(leaf) if _is_record(leaf) else leaf for leaf in leaves]
        self.tensors: list[torch.Tensor] = []
        self.obstacle: str | None = None
        for leaf in self._leaves:
            if isinstance(leaf, torch.Tensor):
                self.tensors.append(leaf)
            elif isinstance(leaf, _DataclassLeaf):
                self.tensors += [t for _, nest in leaf.nests for t in nest.tensors]
                obstacles = (nest.obstacle for _, nest in leaf.nests)
                self.obstacle = self.obstacle or next(filter(None, obstacles), None)
            elif not isinstance(leaf, _PLAIN) and self.obstacle is None:
                self.obstacle = f"a {type(leaf).__qualname__}, which may hold tensors of the graph"
        self._is_tensor = self._spec.is_leaf() and type(value) is torch.Tensor

    def settle(self) -> None:
        """Keep after the capture what the tensors are now, whatever `set_` or `.data =` do."""
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            self.tensors = [tensor.detach() for tensor in self.tensors]

    def filled(self, copies: Sequence[torch.Tensor]) -> Any:
        """Return the same nest with these in the place of `tensors`."""
        return copies[0] if self._is_tensor else self._take(iter(copies))

    def _take(self, copies: Iterator[torch.Tensor]) -> Any:
        leaves = []
        for leaf in self._leaves:
            if isinstance(leaf, torch.Tensor):
                leaf = _of_class(type(leaf), next(copies))
            elif isinstance(leaf, _DataclassLeaf):
                leaf = leaf.take(copies)
            leaves.append(leaf)
        return _pytree.tree_unflatten(leaves, self._spec)


class _DataclassLeaf:
    """A dataclass in a nest of results."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self.nests = [
            (field.name, ResultNest(getattr(value, field.name))) for field in fields(value)
        ]

    def take(self, copies: Iterator[torch.Tensor]) -> Any:
        """Another one with the next copies; no constructor runs."""
        record = object.__new__(type(self._value))
        for name, value in getattr(self._value, "__dict__", {}).items():  # slots have none
            object.__setattr__(record, name, value)
        for name, nest in self.nests:
            object.__setattr__(record, name, nest._take(copies))
        return record


def _of_class(kind: type, copy: torch.Tensor) -> torch.Tensor:
    """Return a result of the user's tensor class as it is; a parameter becomes a tensor."""
    plain = kind is torch.Tensor or issubclass(kind, torch.nn.Parameter)
    return copy if plain else copy.as_subclass(kind)


def _is_record(value: Any) -> bool:
    """Return whether it is a dataclass, and no container besides, whose items would be lost."""
    return is_dataclass(value) and not isinstance(value, (type, dict, list, tuple))
