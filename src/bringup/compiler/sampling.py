"""Random data that looks like a fake tensor, and how far two results are apart."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch

from bringup import ir
from bringup._differences import gap, magnitude

_TOLERANCE = {
    torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2,
    torch.complex64: 1e-4, torch.complex128: 1e-9,
}  # fmt: skip


def sample(meta: object, seed: int, draw: int) -> object:
    """Return data for a value of this meta.

    Floats are normal, ten times as large in every other draw, or `ir.special_numbers`; integers are
    0 or 1, so that they can be indices. Each symbolic size has one number in each draw, wherever it
    stands.
    """
    if not isinstance(meta, torch.Tensor):
        return _number(meta, draw)
    shape = [_number(size, draw) for size in meta.shape]
    strides = [_number(stride, draw) for stride in meta.stride()]
    generator = torch.Generator().manual_seed(seed)
    if meta.dtype.is_floating_point or meta.dtype.is_complex:
        wide = torch.complex128 if meta.dtype.is_complex else torch.float64
        values = torch.randn(shape, generator=generator, dtype=wide) * (10 if draw % 2 else 1)
        if numbers := ir.special_numbers(draw):
            chosen = torch.randperm(values.numel(), generator=generator) % len(numbers)
            values = torch.tensor(numbers, dtype=wide)[chosen].view(shape)
    else:
        values = torch.randint(0, 2, shape, generator=generator)
    data = torch.empty_strided(shape, strides, dtype=meta.dtype, device=meta.device)
    if 0 in strides:  # an expanded tensor: equal along these dimensions
        return (
            values[tuple(slice(0, 1) if not s else slice(None) for s in strides)]
            .to(meta.dtype)
            .to(meta.device)
            .expand(shape)
        )
    return data.copy_(values)


def _number(size: object, draw: int) -> int | float | bool:
    """Return a size as a number: symbols get one that depends on their name and the draw."""
    if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        expression = size.node.expr
        values = {symbol: size_of(str(symbol), draw) for symbol in expression.free_symbols}
        return int(expression.subs(values))
    assert isinstance(size, (int, float, bool)), f"expected a number, got {size!r}"
    return size


def size_of(symbol: str, draw: int) -> int:
    """Return the number that a symbolic size has in a draw."""
    digest = hashlib.sha256(f"{symbol}/{draw}".encode()).digest()
    return 3 + digest[0] % 8


def distance(expected: object, got: object) -> tuple[float, float]:
    """Return the largest absolute difference, and what this dtype and magnitude allow. NaN equals
    NaN; another shape or dtype is infinitely far.
    """
    if not (isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor)):
        return (0.0 if expected == got else math.inf), 0.0
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return math.inf, 0.0
    apart = gap(expected, got) or 0.0
    allowed = _TOLERANCE.get(expected.dtype, 0.0) * max(1.0, magnitude(expected))
    return (math.inf if math.isnan(apart) else apart), allowed


def zeros_differ(expected: object, got: object) -> bool:
    """Return whether a zero has another sign in two real tensors of one shape and dtype."""
    if not isinstance(expected, torch.Tensor) or not expected.is_floating_point():
        return False
    assert isinstance(got, torch.Tensor)
    zeros = (expected == 0) & (got == 0)
    return bool((zeros & (expected.signbit() != got.signbit())).any())


def vary(
    meta: object, dtype: str | None = None, resized: Callable[[int], int] | None = None
) -> object:
    """Return the meta in another floating dtype, or sizes above 1 `resized`, or itself."""
    if not isinstance(meta, torch.Tensor):
        return meta
    other = meta
    if dtype is not None and meta.dtype.is_floating_point:
        other = other.to(getattr(torch, dtype))
    if resized is None:
        return other
    sizes = [resized(size) if isinstance(size, int) and size > 1 else size for size in other.shape]
    return other.new_empty(sizes) if list(other.shape) != sizes else other
