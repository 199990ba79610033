"""What the rows of the table are written with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import torch

from bringup.devices import Operator

__all__ = ["ANY", "FLOATING", "MOVED", "NUMBERS", "SINGLE", "each", "lanes", "raw", "reduction"]

Supported: TypeAlias = torch.dtype | Literal["floating", "integral", "bool"]

_LANES = 64  # of a block that goes along a row (kernels/rows.h)

SINGLE: tuple[Supported, ...] = (torch.float32,)
NUMBERS: tuple[Supported, ...] = (torch.float32, torch.float64, "integral")
FLOATING: tuple[Supported, ...] = (torch.float32, torch.float64)
ANY: tuple[Supported, ...] = (torch.float32, torch.float64, "integral", "bool")
MOVED: tuple[Supported, ...] = ("floating", "integral", "bool")


def raw(
    name: str,
    place: str,
    args: str,
    grid: str | Sequence[str],
    *,
    block: int | Sequence[int] = _LANES,
    strided: str = "",
    dtypes: Mapping[str, str] | None = None,
    supports: tuple[Supported, ...] = SINGLE,
) -> Operator:
    file, _, entry = place.partition(":")
    return Operator(
        f"aten::{name}",
        supports,
        file=file,
        kind="raw",
        entry=entry,
        dtypes=dtypes,
        strided=tuple(strided.split()),
        args=args,
        grid=grid,
        block=block,
    )


def reduction(
    name: str, entry: str, supports: tuple[Supported, ...], file: str = "reductions.cl"
) -> Operator:
    return Operator(f"aten::{name}", supports, file=file, kind="reduction", entry=entry)


def lanes(n: str, rows: str) -> str:
    """Return how many threads share a row of `n` elements: 8 where many rows are short."""
    return f"({_LANES} - {_LANES - 8} * (({n}) <= 128 and ({rows}) >= {_LANES}))"


def each(count: str) -> str:
    """Return the blocks for `count` elements, of which a thread takes several if there are many."""
    return f"min(({count} + {_LANES - 1}) // {_LANES}, 65536)"
