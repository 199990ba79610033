"""Operands of every element type, their scales of every granularity, and the product in float64."""

from __future__ import annotations

from typing import Any

import torch
from tests.unit.kernels.matmul_support import lay_out
from torch import Tensor

ELEMENTS = (
    torch.int8, torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16,
    torch.float32,
)  # fmt: skip
SCALES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e8m0fnu)
GRANULARITIES = ("none", "tensor", "vector", "group", "block")
RESULTS = (torch.float32, torch.float16, torch.bfloat16)
# What the rounding of a result may be off by, relatively.
ROUNDING = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
_INT8_MAX = 127


def element(shape: tuple[int, ...], dtype: torch.dtype, layout: str = "row") -> Tensor:
    """Values of a dtype, none of them far from 1 but of int8, which takes all."""
    if dtype is torch.int8:
        return lay_out(torch.randint(-128, 128, shape, dtype=dtype), layout)
    values = torch.randn(shape).to(dtype)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    return lay_out(values.view(bits), layout).view(dtype)


def scale(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Positive scales of a few powers of two, or between them."""
    if dtype is torch.float8_e8m0fnu:
        return torch.randint(120, 130, shape, dtype=torch.uint8).view(dtype)
    return (torch.rand(shape) + 0.5).to(dtype)


def scales_of(
    rows: int, columns: int, granularity: str, dtype: torch.dtype, vector: str, block: int
) -> tuple[Tensor | None, tuple[int, int]]:
    """Scales of a matrix and their block; `vector` is "rows" or "columns", along which one scale of
    each is "vector", and of each group of the other dimension "group".
    """
    if granularity == "none":
        return None, (1, 1)
    if granularity == "tensor":
        return scale((1,), dtype), (1, 1)
    if granularity == "vector":
        return scale((rows if vector == "rows" else columns,), dtype), (1, 1)
    if granularity == "block":
        sizes = (block, block)
    else:
        sizes = (1, block) if vector == "rows" else (block, 1)
    return scale((-(-rows // sizes[0]), -(-columns // sizes[1])), dtype), sizes


def spread(
    given: Tensor | None, rows: int, columns: int, block: tuple[int, int], vector: str
) -> Any:
    """Scales as float64 of every element [rows, columns], or 1."""
    if given is None:
        return 1.0
    values = given.double()
    if values.dim() < 2:
        values = values.reshape(-1, 1) if vector == "rows" else values.reshape(1, -1)
        block = (1, 1)
    if values.shape[0] > 1:
        values = values.repeat_interleave(block[0], 0)[:rows]
    if values.shape[1] > 1:
        values = values.repeat_interleave(block[1], 1)[:, :columns]
    return values.expand(rows, columns)


def product(
    a: Tensor, b: Tensor, of_a: Any, of_b: Any, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The product with scales of each element, and the sum of its terms' magnitudes."""
    left, right = a.double() * of_a, b.double() * of_b
    result, magnitude = left @ right, left.abs() @ right.abs()
    if bias is not None:
        result, magnitude = result + bias.double(), magnitude + bias.double().abs()
    return result, magnitude


def assert_near(ours: Tensor, expected: Tensor, magnitude: Tensor) -> None:
    """Sums of float32 over the magnitude, and one rounding to the result's dtype."""
    assert ours.shape == expected.shape
    assert ours.is_contiguous()
    error = (ours.double() - expected).abs()
    smallest = torch.finfo(ours.dtype).smallest_normal
    bound = 3e-6 * magnitude + ROUNDING[ours.dtype] * expected.abs() + smallest
    largest = torch.finfo(ours.dtype).max
    assert bool(((error <= bound) | (expected.abs() > 0.99 * largest)).all()), error.max()
