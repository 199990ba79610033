"""Arguments as records keep them."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import torch

__all__ = ["TensorRef", "wrapped"]


class TensorRef:
    """A tensor of a record, which does not keep its memory: shape, stride, dtype and device are
    those of the capture.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.stride = tensor.shape, tensor.stride()
        self.dtype, self.device = tensor.dtype, tensor.device
        self._reference = weakref.ref(tensor)
        self._memory = (tensor.untyped_storage()._cdata, tensor.storage_offset())

    def get(self) -> torch.Tensor | None:
        """The tensor, as long as somebody else has it."""
        return self._reference()

    def is_(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` is this memory, seen in the same way: shape, strides, dtype."""
        memory = (tensor.untyped_storage()._cdata, tensor.storage_offset())
        seen = (tensor.shape, tensor.stride(), tensor.dtype)
        return memory == self._memory and seen == (self.shape, self.stride, self.dtype)

    def __repr__(self) -> str:
        return f"TensorRef({self.dtype}, {list(self.shape)}, {self.device})"


def wrapped(value: Any) -> Any:
    """A value as a record keeps it: tensors by reference, lists and tuples element by element,
    everything else as a deep copy.
    """
    if isinstance(value, torch.Tensor):
        return TensorRef(value)
    if isinstance(value, (list, tuple)):
        return type(value)(wrapped(item) for item in value)
    return copy.deepcopy(value)
