"""The tensors in a model's output, and how far two outputs are apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["compared", "flat"]


def flat(result: Any) -> list[torch.Tensor]:
    """The tensors of a result, copied (a captured graph overwrites its own)."""
    if hasattr(result, "to_tuple"):
        result = result.to_tuple()
    return [x.clone() for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]


def compared(
    ours: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> tuple[float | None, str]:
    """The largest absolute difference, and why that is no good number, or ""."""
    if not ours and not expected:
        return None, "the output has no tensor: nothing to compare"
    if [(x.shape, x.dtype) for x in ours] != [(x.shape, x.dtype) for x in expected]:
        return math.inf, "the outputs differ from eager's in number, shape or dtype"
    gaps = [_gap(x, y) for x, y in zip(ours, expected, strict=True) if x.numel()]
    if any(math.isnan(gap) for gap in gaps):  # max() would drop a NaN that is not the first
        return math.nan, "the outputs differ by a NaN"
    largest = max(gaps, default=0.0)
    return largest, "" if math.isfinite(largest) else "the outputs differ by an infinity"


def _gap(ours: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest absolute difference of two tensors of one shape and dtype. Infinities that are
    the same differ by 0, and so does NaN from NaN.
    """
    wide = torch.int64  # exact, also beyond 2**53
    if ours.is_complex() or ours.is_floating_point():
        wide = torch.complex128 if ours.is_complex() else torch.float64
    x, y = ours.to(wide), expected.to(wide)
    same = (x == y) | (x.isnan() & y.isnan())
    return float((x - y).abs().double().masked_fill(same, 0.0).max())
