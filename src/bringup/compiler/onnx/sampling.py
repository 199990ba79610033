"""Random data that looks like a value of an ONNX graph, and how far two results are apart."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from bringup import ir
from bringup.compiler.onnx.types import dtype_number
from bringup.errors import PassError

_TOLERANCE = {
    "float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 4e-2, "complex64": 1e-4,
    "complex128": 1e-9,
}  # fmt: skip
_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})


def sample(look: object, seed: int, draw: int) -> Any:
    """Return data for a value that looks like this.

    Floats are normal, ten times as large in every other draw, or `ir.special_numbers`; integers are
    0 or 1, so that they can be indices. Each symbolic size has one number in each draw, wherever it
    stands. Raises `PassError` for what is no tensor of known rank.
    """
    if not isinstance(look, ir.TensorDesc):
        raise PassError(f"there is no random data of {look}")
    shape = [_size(dim, draw) for dim in look.shape]
    generator = np.random.default_rng(seed)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(dtype_number(look.dtype))
    if look.dtype == "string":
        return generator.choice(np.array(["", "a", "bc"], dtype=object), shape)
    if look.dtype.startswith(("float", "bfloat", "complex")):
        numbers = np.asarray(generator.standard_normal(shape) * (10 if draw % 2 else 1))
        if special := ir.special_numbers(draw):
            chosen = generator.permutation(numbers.size) % len(special)
            numbers = np.asarray(special)[chosen].reshape(shape)
        return numbers.astype(dtype)
    return np.asarray(generator.integers(0, 2, shape)).astype(dtype)


def _size(dim: ir.Dim, draw: int) -> int:
    if isinstance(dim, int):
        return dim
    return 3 + hashlib.sha256(f"{dim}/{draw}".encode()).digest()[0] % 8


def distance(expected: object, got: object) -> tuple[float, float]:
    """Return the largest absolute difference, and what this dtype and magnitude allow. NaN equals
    NaN; another shape, dtype or length is infinitely far.
    """
    if isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        gaps = [distance(one, other) for one, other in zip(expected, got, strict=True)]
        return max(gaps, key=lambda pair: pair[0] - pair[1], default=(0.0, 0.0))
    if not (isinstance(expected, np.ndarray) and isinstance(got, np.ndarray)):
        return (0.0 if type(expected) is type(got) and expected == got else math.inf), 0.0
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return math.inf, 0.0
    if not expected.size:
        return 0.0, 0.0
    if expected.dtype.kind in "OUSb":
        return (0.0 if bool((expected == got).all()) else math.inf), 0.0
    return _gap(expected, got)


def _gap(expected: Any, got: Any) -> tuple[float, float]:
    name = str(expected.dtype)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    one, other = expected.astype(wide), got.astype(wide)
    same = (expected == got) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore", over="ignore"):
        gaps = np.abs(one - other)
        if expected.dtype.kind in "iu":  # two large ones may be one in floating point
            gaps = np.maximum(gaps, 1.0)
        gaps = np.where(same, 0.0, gaps)
    gap = float(np.nan_to_num(gaps, nan=math.inf, posinf=math.inf).max())
    sizes = np.abs(one)
    largest = float(np.where(np.isfinite(sizes), sizes, 0.0).max())
    return gap, _TOLERANCE.get(name, 0.0) * max(1.0, largest)


def vary(
    look: object, dtype: str | None = None, resized: Callable[[int], int] | None = None
) -> object:
    """Return the look in another floating dtype, or sizes above 1 `resized`, or itself."""
    if not isinstance(look, ir.TensorDesc):
        return look
    wanted = dtype if dtype is not None and look.dtype in _FLOATS else look.dtype
    dims = tuple(
        resized(dim) if resized is not None and isinstance(dim, int) and dim > 1 else dim
        for dim in look.shape
    )
    other = ir.TensorDesc(ir.Shape(dims), wanted)
    return look if other == look else other
