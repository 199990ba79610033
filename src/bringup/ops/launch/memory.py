"""Tensors as kernels that take raw addresses see them: where one begins, and room for a result."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from bringup.errors import ContractError, first_line

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Address(int):
    """The address of a tensor's first element: an int that knows the tensor's device."""

    device: torch.device


def tensor_ptr(tensor: torch.Tensor) -> Address:
    """Return the address of a tensor's first element, storage offset included, for a kernel.

    The address keeps nothing alive: the tensor has to stay as long as the kernel may run. Sizes and
    strides are the caller's to pass on. A tensor without elements may have the address 0.

    Raises:
        TypeError: no tensor.
        ContractError: the tensor has no memory of its own: a meta or fake tensor, one whose storage
            was freed or shrunk, a sparse one, one inside a transform such as vmap.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"tensor_ptr: expected a torch.Tensor, got {type(tensor).__name__} ({tensor!r})"
        )
    if reason := _without_memory(tensor):
        raise ContractError(f"tensor_ptr: {reason}")
    try:
        address = Address(tensor.data_ptr())
    except RuntimeError as error:
        raise ContractError(
            f"tensor_ptr: a {type(tensor).__name__} of shape {list(tensor.shape)} has no address "
            f"({first_line(error)}); inside vmap and the like, call an operator instead"
        ) from error
    address.device = tensor.device
    return address


def alloc_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a new tensor of the same shape, dtype and device for a kernel to write: contiguous,
    whatever the strides of `tensor`, and not cleared.
    """
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _without_memory(tensor: torch.Tensor) -> str:
    """Return why a tensor has no address, or "". data_ptr() itself says 0, or anything at all."""
    if type(tensor) not in _PLAIN and (reason := _wrapped(tensor)):
        return reason
    shape = tensor.shape
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {tensor.layout} has no single address; pass its parts"
    if tensor.is_meta:
        return f"a meta tensor of shape {list(shape)} has no memory; wrap the kernel in an operator"
    if tensor.is_conj() or tensor.is_neg():
        return "its memory holds other values (conjugated, negated): resolve_conj(), resolve_neg()"
    count = tensor.numel()
    if count == 0 or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return ""
    if not tensor.is_contiguous():
        count = 1 + sum((n - 1) * step for n, step in zip(shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + count) * tensor.itemsize
    held = tensor.untyped_storage().nbytes()
    if held < needed:
        return (
            f"the memory of a tensor of shape {list(shape)} was freed: its storage holds {held} "
            f"bytes, the tensor needs {needed}"
        )
    return ""


def _wrapped(tensor: torch.Tensor) -> str:
    if isinstance(tensor, FakeTensor):
        shape = list(tensor.shape)
        return f"a fake tensor of shape {shape} has no memory; wrap the kernel in an operator"
    if is_traceable_wrapper_subclass(tensor):
        return f"a {type(tensor).__name__} wraps other tensors; pass one of those"
    return ""
