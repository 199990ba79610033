"""Arguments as records keep them."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Collection
from typing import Any

import torch
from torch.utils import _pytree


class TensorRef:
    """A tensor of a record, which does not keep its memory: shape, stride, dtype and device are
    those of the capture. Operators take it in the place of a living tensor.

    Examples:
        >>> from bringup import graphs
        >>> x = torch.ones(2)
        >>> reference = graphs.TensorWeakRef(x)  # TensorRef under torch_npu's name
        >>> isinstance(reference, graphs.TensorRef), reference.is_(x), reference.is_(x[:1])
        (True, True, False)
        >>> torch.add(reference, 1)
        tensor([2., 2.])
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.stride = tensor.shape, tensor.stride()
        self.dtype, self.device = tensor.dtype, tensor.device
        self._reference = weakref.ref(tensor)
        self._memory = (tensor.untyped_storage()._cdata, tensor.storage_offset())

    def get(self) -> torch.Tensor | None:
        """Return the tensor, if it is alive."""
        return self._reference()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = _pytree.tree_map(_there, (args, kwargs or {}))
        return func(*args, **kwargs)

    def is_(self, tensor: torch.Tensor) -> bool:
        """Return whether `tensor` is this memory, seen in the same way: shape, strides, dtype."""
        memory = (tensor.untyped_storage()._cdata, tensor.storage_offset())
        seen = (tensor.shape, tensor.stride(), tensor.dtype)
        return memory == self._memory and seen == (self.shape, self.stride, self.dtype)

    def __repr__(self) -> str:
        return f"TensorRef({self.dtype}, {list(self.shape)}, {self.device})"


def _there(value: Any) -> Any:
    if not isinstance(value, TensorRef):
        return value
    tensor = value.get()
    if tensor is None:
        raise RuntimeError(f"{value}: this tensor was freed, and its memory with it")
    return tensor


def wrapped_keyword(key: str, value: Any, tensor_names: Collection[str]) -> Any:
    """Return a keyword-only argument as torch_npu keeps it: device tensors by reference, else a
    copy.
    """
    if isinstance(value, torch.Tensor):
        by_reference = key in tensor_names and value.device.type != "cpu"
        return TensorRef(value) if by_reference else value.detach().clone()
    if isinstance(value, (list, tuple)):
        return type(value)(wrapped_keyword(key, item, tensor_names) for item in value)
    return copy.deepcopy(value)


def wrapped(value: Any) -> Any:
    """Return a value as a record keeps it: tensors by reference, others as deep copies."""
    if isinstance(value, torch.Tensor):
        return TensorRef(value)
    if isinstance(value, (list, tuple)):
        return type(value)(wrapped(item) for item in value)
    return copy.deepcopy(value)
