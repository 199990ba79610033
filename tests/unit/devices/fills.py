"""Fills and copies of rows, compared with cpu byte by byte; also run in processes of their own,
where device memory is out of the host's reach."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
FLOATS = [0.0, -0.0, 1.0, -1.5, 0.1, math.nan, math.inf, -math.inf]


def values_of(dtype: torch.dtype) -> list[bool | int | float | complex]:
    if dtype == torch.bool:
        return [False, True, 2, 0.5]
    if dtype.is_complex:
        return [*FLOATS, 1 + 2j, complex(-0.0, math.nan), 3.3j]
    if dtype.is_floating_point:
        return list(FLOATS)
    info = torch.iinfo(dtype)
    return [0, 1, 3.7, info.max if info.max < 2**63 else 2**63 - 1, info.min, True]


def bits(tensor: torch.Tensor) -> list[int]:
    """Every byte of a tensor."""
    return tensor.cpu().contiguous().view(torch.uint8).flatten().tolist()


FILLS: dict[str, Callable[[str, torch.dtype, complex], torch.Tensor]] = {
    "fill_": lambda place, dtype, value: torch.empty(5, 3, dtype=dtype, device=place).fill_(value),
    "fill_ with a tensor": lambda place, dtype, value: torch.empty(
        7, dtype=dtype, device=place
    ).fill_(torch.tensor(value)),
    "fill_ of a part": lambda place, dtype, value: _filled_part(place, dtype, value),
    "fill_ of a column": lambda place, dtype, value: _filled_column(place, dtype, value),
    "fill_ of one element": lambda place, dtype, value: torch.empty(
        1, dtype=dtype, device=place
    ).fill_(value),
    "full": lambda place, dtype, value: torch.full((2, 9), value, dtype=dtype, device=place),
    "full_like": lambda place, dtype, value: torch.full_like(
        torch.empty(3, dtype=dtype, device=place), value
    ),
    "zero_": lambda place, dtype, value: torch.full((6,), value, dtype=dtype, device=place).zero_(),
    "zeros": lambda place, dtype, value: torch.zeros(33, dtype=dtype, device=place),
    "ones": lambda place, dtype, value: torch.ones(33, dtype=dtype, device=place),
}


def _filled_part(place: str, dtype: torch.dtype, value: complex) -> torch.Tensor:
    whole = torch.zeros(11, dtype=dtype, device=place)
    whole[3:8].fill_(value)
    return whole


def _filled_column(place: str, dtype: torch.dtype, value: complex) -> torch.Tensor:
    whole = torch.zeros(4, 5, dtype=dtype, device=place)
    whole[:, 2].fill_(value)
    return whole


def outcome(
    fill: Callable[..., torch.Tensor], place: str, dtype: torch.dtype, value: complex
) -> str | list[int]:
    """The bytes that the fill leaves, or what it raises."""
    try:
        return bits(fill(place, dtype, value))
    except (RuntimeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"


def fills_unlike_cpu(dtype: torch.dtype) -> list[str]:
    """Where a fill on the device leaves other bytes than on cpu, or is refused otherwise."""
    found = []
    for name, fill in FILLS.items():
        for value in values_of(dtype):
            expected = outcome(fill, "cpu", dtype, value)
            got = outcome(fill, "npu", dtype, value)
            if got != expected:
                found.append(f"{name} {dtype} {value}: {got} instead of {expected}")
    return found


def _window(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[1:5, 2:7]


ROWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "columns": lambda whole: whole[:, 1:4],
    "window": _window,
    "every other row": lambda whole: whole[::2],
    "one column": lambda whole: whole[:, 3],
    "one element": lambda whole: whole[2:3, 3:4],
    "rows of a batch": lambda whole: whole.view(2, 3, 8)[:, :2],
    "transposed": lambda whole: whole[:, 1:4].t(),
    "strided inside": lambda whole: whole[:, ::3],
    "in three dimensions": lambda whole: whole.view(2, 3, 8)[:, :2, 1:3],
}


def row_copies_unlike_cpu(dtype: torch.dtype = torch.float32) -> list[str]:
    """Where copies from, to and within the device leave other bytes than copies on cpu."""
    host = torch.arange(48).to(dtype).view(6, 8)
    blank = torch.full((6, 8), -1).to(dtype)
    found = []
    for name, part in ROWS.items():
        expected = blank.clone()
        part(expected).copy_(part(host))
        dense = part(host).contiguous()
        for source, target in [("cpu", "npu"), ("npu", "cpu"), ("npu", "npu"), ("npu:1", "npu")]:
            there = blank.to(target, copy=True)
            part(there).copy_(part(host.to(source, copy=True)))
            if bits(there) != bits(expected):
                found.append(f"{name} {source} to {target}: {there.tolist()}")
            gathered = torch.empty_like(dense, device=target).copy_(part(host.to(source)))
            if bits(gathered) != bits(dense):
                found.append(f"{name} {source} to {target}, gathered: {gathered.tolist()}")
    return found
