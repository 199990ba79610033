"""Arguments of a call, moved as they lie in memory, and what a result shares with the CPU's."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes

from bringup._differences import not_close

# Of one result. The fallback computes with the CPU's own kernels, but a backward may take another
# path to them (a decomposition, another order of sums).
TOLERANCES = {
    torch.float32: (1.3e-6, 1e-5), torch.float64: (1e-7, 1e-7), torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5), torch.complex64: (1.3e-6, 1e-5), torch.complex32: (1e-3, 1e-5),
}  # fmt: skip


def tensors(value: object) -> Iterator[Tensor]:
    """Return every tensor in lists, tuples and dicts, in order."""
    return (leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, Tensor))


def is_strided(value: object) -> bool:
    """Return whether every tensor in `value` has strides: neither sparse nor nested."""
    return all(t.layout is torch.strided and not t.is_nested for t in tensors(value))


class Mover:
    """Moves a call's arguments to the device, with their strides, offsets and shared storages."""

    def __init__(self, device: str | torch.device) -> None:
        self.moved = False
        self._device = torch.device(device)
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._tensors: dict[int, Tensor] = {}

    def __call__(self, value: object) -> Any:
        """`value` with tensors, devices and the name "cpu" replaced by the device's."""
        return _pytree.tree_map(self._leaf, value)

    def _leaf(self, leaf: object) -> object:
        if isinstance(leaf, Tensor):
            self.moved = True
            if id(leaf) not in self._tensors:
                self._tensors[id(leaf)] = self._tensor(leaf)
            return self._tensors[id(leaf)]
        if isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf == "cpu"):
            self.moved = True
            return self._device
        return leaf

    def _tensor(self, tensor: Tensor) -> Tensor:
        if tensor.is_conj():
            return self._tensor(tensor.conj()).conj()
        if tensor.is_neg():
            return torch._neg_view(self._tensor(torch._neg_view(tensor)))
        if not is_strided(tensor):
            return tensor.detach().to(self._device).requires_grad_(tensor.requires_grad)
        with torch.no_grad():
            there = torch.empty(0, dtype=tensor.dtype, device=self._device)
            there.set_(
                self._storage(tensor.detach().untyped_storage()),
                tensor.storage_offset(),
                tensor.size(),
                tensor.stride(),
            )
        return there.requires_grad_(tensor.requires_grad)

    def _storage(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        key = storage._cdata
        if key not in self._storages:
            there = torch.UntypedStorage(storage.nbytes(), device=self._device)
            self._storages[key] = there.copy_(storage) if storage.nbytes() else there
        return self._storages[key]


def outcome(function: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Return what `function` returns, or how it fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(), None
        except Exception as error:
            return None, error


def results_of_seeds(
    module: nn.Module, arguments: Any, seeds: Iterable[int], device: str | torch.device
) -> list[Any]:
    """Return what copies of a module give for copies of (args, kwargs), None where they fail."""
    results = []
    for seed in seeds:
        torch.manual_seed(seed)
        args, kwargs = Mover(device)(arguments)
        inner = copy.deepcopy(module)
        results.append(outcome(lambda m=inner, a=args, k=kwargs: m(*a, **k))[0])  # type: ignore[misc]
    return results


def describe_difference(
    got: object,
    our_error: Exception | None,
    expected: object,
    their_error: Exception | None,
    values: bool,
    device: str,
    tolerance: tuple[float, float] | None = None,
) -> str:
    """Return how an outcome differs from the CPU's, or "": errors too have to be the same."""
    if their_error is not None and our_error is not None:
        refused = isinstance(our_error, NotImplementedError)
        is_theirs = isinstance(their_error, NotImplementedError)
        return described(our_error) if refused and not is_theirs else ""
    if their_error is not None:
        return f"no error, expected {described(their_error)}"
    if our_error is not None:
        return described(our_error)
    return difference(got, expected, values=values, device=device, tolerance=tolerance)


def described(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def gradients(inputs: object, outputs: object) -> list[Tensor | None]:
    """Return gradients of `inputs` for weights of `outputs` that vary: a softmax's sum has none."""
    leaves = [t for t in tensors(inputs) if t.requires_grad]
    with _disable_current_modes():  # weights are no part of what is tested
        results, weights = weighted(outputs)
    if not leaves or not results:
        return []
    found = torch.autograd.grad(results, leaves, weights, allow_unused=True)
    return list(found)


def weighted(outputs: object) -> tuple[list[Tensor], list[Tensor]]:
    """Return what of `outputs` has a gradient, and equal weights on each device."""
    results = [t for t in tensors(outputs) if t.requires_grad]
    return results, [_weights(t).to(t.device) for t in results]


def _weights(like: Tensor) -> Tensor:
    numbers = torch.cos(torch.arange(like.numel(), dtype=torch.float32)) + 0.5
    return numbers.to(like.dtype).reshape(like.shape)


def difference(
    got: object,
    expected: object,
    *,
    values: bool,
    device: str,
    tolerance: tuple[float, float] | None = None,
) -> str:
    """Return how a result differs from the CPU's, in words; "" where it does not.

    Args:
        got: of the device.
        expected: of the CPU, on which every tensor of `got` would otherwise lie.
        values: False to compare all but the numbers: they are random or not written.
        device: where a tensor of `got` has to be.
        tolerance: rtol and atol; None for those of the dtype.
    """
    ours, ours_spec = _pytree.tree_flatten(got)
    theirs, theirs_spec = _pytree.tree_flatten(expected)
    if ours_spec != theirs_spec:
        return f"structure {ours_spec}, expected {theirs_spec}"
    for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        found = _leaf_difference(one, other, values, device, tolerance)
        if found:
            return f"result {index}: {found}" if len(ours) > 1 else found
    return ""


def _leaf_difference(
    one: object, other: object, values: bool, device: str, tolerance: tuple[float, float] | None
) -> str:
    if type(one) is not type(other):
        return f"{type(one).__name__}, expected {type(other).__name__}"
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return _plain_difference(one, other) if values else ""
    if one.device.type != device:
        return f"on {one.device}"
    ours = (one.dtype, tuple(one.shape), one.layout, one.requires_grad)
    theirs = (other.dtype, tuple(other.shape), other.layout, other.requires_grad)
    if ours != theirs:
        return f"{ours}, expected {theirs}"
    # Copies of a tensor with gaps have none, and an empty one has no place in memory.
    dense = (
        is_strided(other)
        and other.numel() > 0
        and is_non_overlapping_and_dense_or_false(other.detach())
    )
    if dense and one.stride() != other.stride():
        return f"strides {one.stride()}, expected {other.stride()}"
    if not values:
        return ""
    rtol, atol = tolerance or TOLERANCES.get(one.dtype, (0.0, 0.0))
    return not_close(one.detach().cpu(), other.detach(), rtol=rtol, atol=atol)


def _plain_difference(one: object, other: object) -> str:
    if isinstance(one, float) and isinstance(other, float):
        same = math.isclose(one, other, rel_tol=1.3e-6) or (math.isnan(one) and math.isnan(other))
    elif isinstance(one, torch.device | torch.Generator):
        same = True
    else:
        same = one == other
    return "" if same else f"{one!r}, expected {other!r}"
