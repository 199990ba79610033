"""How far a result is from the one that it is compared with, and what of that is allowed.

Errors are relative to the largest value of the expected result: a gradient of 1e-8 that is one per
cent wrong is wrong, and one element near zero that was cancelled is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bringup._differences import as_strided_on_host

_TOLERANCES = {
    torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2,
    torch.float8_e4m3fn: 0.125, torch.float8_e5m2: 0.25,
}  # fmt: skip


def tolerance_of(dtype: torch.dtype) -> float:
    """Return the relative error that one operator may have; 0 for exact dtypes."""
    if dtype.is_complex:
        return _TOLERANCES[dtype.to_real()] if dtype is not torch.complex32 else 2e-3
    return _TOLERANCES.get(dtype, 0.0)


@dataclass(frozen=True)
class Deviation:
    """How a result differs from the expected one.

    Attributes:
        error: the largest absolute difference by the largest expected value; infinite where the
            two cannot be subtracted.
        allowed: up to which the results agree.
        kind: "none", "value", "exact" (integers, truth values and objects are to be equal),
            "nonfinite" (a NaN or an infinity on one side only), "form" (shape, dtype, structure).
        index: of the worst element, in a result of tensors.
        got: its value.
        expected: the value it was to have.
        dtype: of the result.
        shape: of the result.
        words: what is to be said of it beyond the numbers.
    """

    error: float = 0.0
    allowed: float = 0.0
    kind: str = "none"
    index: tuple[int, ...] = ()
    got: str = ""
    expected: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    words: str = ""

    @property
    def exceeds(self) -> bool:
        """Return whether it is more than what is allowed."""
        return self.kind != "none"


def deviation(
    got: object, expected: object, *, pointwise: bool = False, factor: float = 1.0
) -> Deviation:
    """Return how one value differs from the expected one; NaN equals NaN, an infinity itself.

    Args:
        got: a tensor of any device, or anything that has `==`.
        expected: the same of the other side.
        pointwise: whether each element is a function of few: then each is to be right by itself.
        factor: how many times the dtype's tolerance is allowed.
    """
    if isinstance(got, Tensor) and isinstance(expected, Tensor):
        return _of_tensors(got, expected, pointwise, factor)
    if isinstance(got, bool) or not isinstance(got, float) or not isinstance(expected, float):
        return _of_objects(got, expected)
    pair = torch.tensor(got), torch.tensor(expected)  # numbers of `item()` have one of float32
    return _of_tensors(*pair, pointwise, factor)


def leaf_deviations(
    got: Sequence[Any], expected: Sequence[Any], *, pointwise: bool = False, factor: float = 1.0
) -> list[Deviation]:
    """Return the deviations of results in order, or one of kind "form" for other counts."""
    if len(got) != len(expected):
        words = f"{len(got)} results, expected {len(expected)}"
        return [Deviation(math.inf, 0.0, "form", words=words)]
    pairs = zip(got, expected, strict=True)
    return [deviation(a, b, pointwise=pointwise, factor=factor) for a, b in pairs]


def worst(deviations: Sequence[Deviation]) -> Deviation:
    """Return the one that matters most: what exceeds first, then the largest error."""
    key = [(d.exceeds, d.kind in ("form", "nonfinite"), d.error) for d in deviations]
    return deviations[key.index(max(key))] if key else Deviation()


def _of_objects(got: object, expected: object) -> Deviation:
    if type(got) is type(expected) and (
        got == expected or isinstance(got, torch.device | torch.Generator)
    ):
        return Deviation()
    return Deviation(math.inf, 0.0, "exact", got=repr(got), expected=repr(expected))


def _of_tensors(got: Tensor, expected: Tensor, pointwise: bool, factor: float) -> Deviation:
    form = (tuple(got.shape), got.dtype), (tuple(expected.shape), expected.dtype)
    name, shape = str(expected.dtype).removeprefix("torch."), tuple(expected.shape)
    if form[0] != form[1]:
        words = f"{form[0][1]} {list(form[0][0])}, expected {form[1][1]} {list(form[1][0])}"
        return Deviation(math.inf, 0.0, "form", dtype=name, shape=shape, words=words)
    allowed = factor * tolerance_of(expected.dtype)
    x, y = dense(got), dense(expected)
    if not x.numel():
        return Deviation(allowed=allowed, dtype=name, shape=shape)
    if not allowed:
        wrong = (x != y).nonzero()
        if not len(wrong):
            return Deviation(dtype=name, shape=shape)
        at = tuple(wrong[0].tolist())
        values = str(x[at].item()), str(y[at].item())
        words = f"{len(wrong)} of {x.numel()} elements differ"
        return Deviation(math.inf, 0.0, "exact", at, *values, name, shape, words)
    return _of_numbers(x, y, Deviation(allowed=allowed, dtype=name, shape=shape), pointwise)


def _of_numbers(x: Tensor, y: Tensor, base: Deviation, pointwise: bool) -> Deviation:
    lost = (x.isfinite() != y.isfinite()) | (x.isnan() != y.isnan())
    lost |= x.isinf() & y.isinf() & (x != y)
    if bool(lost.any()):
        at = tuple(lost.nonzero()[0].tolist())
        many = f"{int(lost.sum())} of {x.numel()} elements"
        return _at(base, x, y, at, math.inf, "nonfinite", many)
    finite = y.isfinite()
    gap = (x - y).masked_fill(~finite, 0.0).abs()
    scale = float(y.abs().masked_fill(~finite, 0.0).max())
    if not bool(gap.any()):
        return base
    excess = gap - limits(y, base, pointwise)
    exceeds = bool((excess > 0).any())
    flat = (excess if exceeds else gap).argmax()
    at = tuple(int(i) for i in torch.unravel_index(flat, gap.shape))
    error = float(gap.max()) / scale if scale else math.inf
    return _at(base, x, y, at, error, "value" if exceeds else "none", "")


def limits(expected: Tensor, found: Deviation, pointwise: bool) -> Tensor:
    """Return how far each element may be off, NaN and infinities without limit."""
    finite = expected.isfinite()
    sizes = expected.abs().masked_fill(~finite, 0.0)
    scale = float(sizes.max())
    limit = torch.full_like(sizes, found.allowed * scale)
    if pointwise:
        epsilon = torch.finfo(getattr(torch, found.dtype)).eps
        limit = torch.minimum(limit, found.allowed * sizes + 4 * epsilon * scale)
    return limit.masked_fill(~finite, math.inf)


def _at(
    base: Deviation, x: Tensor, y: Tensor, at: tuple[int, ...], error: float, kind: str, words: str
) -> Deviation:
    got, expected = f"{float(x[at]):.7g}", f"{float(y[at]):.7g}"
    return Deviation(error, base.allowed, kind, at, got, expected, base.dtype, base.shape, words)


def dense(tensor: Tensor) -> Tensor:
    """Return the values on the host, strided, floating ones in float64, a complex one as pairs."""
    tensor = as_strided_on_host(tensor)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.to(torch.complex128))
    return tensor.double() if tensor.is_floating_point() else tensor
