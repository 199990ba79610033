"""How a frozen weight should lie: measured once a machine and shape, kept by `jit.measured`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import torch

from bringup import jit
from bringup.kernels._linear import PANEL, pack_weight, packed_linear
from bringup.kernels._linear_mkl import has_mkl, mkl_linear, pack_weight_mkl
from bringup.kernels._sources import kernel_source

PANELS = "panels"  # packed_linear
MKL = "mkl"  # mkl_linear
COLUMNS = "columns"  # torch's product over a contiguous [k, n]
AS_IT_IS = "as it is"  # torch's product over [n, k], transposed
_WAYS = (PANELS, MKL, COLUMNS, AS_IT_IS)
_NARROW = "panels, bfloat16"
_ONE_THREAD = "panels, one thread"

_UNKNOWN_ROWS = (1, 16, 64, 256)
_MOST_ROWS = 1024
_BUSY = 1.3  # threads that take this much longer than one of them waited for other programs
_MARGIN = 1.05  # what is not faster by this much does not displace the panels
_WEIGHT_BYTES = 32 << 20  # of a larger weight, some columns are measured
_MOST_COPIES = 64
_COLD_BYTES = 48 << 20  # of weights that take turns: a model's weights are not in a cache


def best_layout(
    rows: int | None,
    depth: int,
    width: int,
    dtype_name: str,
    *,
    may_be_narrow: bool = False,
    may_be_mkl: bool = False,
) -> str:
    """Return PANELS, MKL, COLUMNS or AS_IT_IS, the fastest for x of `rows`; PANELS unmeasured.

    Without `rows`, what is never far from the best of 1, 16, 64 and 256; not MKL, which packs for
    one number. `may_be_narrow`: panels count as bfloat16, which they may become; `may_be_mkl`: the
    packed weight stays where it is, as MKL's form has to.
    """
    dtype: torch.dtype = getattr(torch, dtype_name)
    if 0 in (rows, depth, width):
        return PANELS
    measured_width = _measured_width(depth, width, dtype)
    classes = _UNKNOWN_ROWS if rows is None else (min(_MOST_ROWS, 1 << (rows - 1).bit_length()),)
    tables = [_seconds(one, depth, measured_width, dtype) for one in classes]
    if not all(map(_is_trusted, tables)):
        return PANELS
    if may_be_narrow:
        tables = [{**table, PANELS: table.get(_NARROW, table[PANELS])} for table in tables]
    ways = [
        way
        for way in _WAYS
        if way in tables[0] and (way != MKL or (may_be_mkl and rows is not None))
    ]
    return _never_bad(tables, ways)


def _is_trusted(table: Mapping[str, float]) -> bool:
    """Return whether the machine was idle when measured; others are kept so that runs agree."""
    return bool(table) and table[PANELS] <= _BUSY * table[_ONE_THREAD]


def _never_bad(tables: list[Mapping[str, float]], ways: list[str]) -> str:
    """Return the way with the smallest worst ratio; panels if near that."""
    worst = {
        way: max(table[way] / min(map(table.__getitem__, ways)) for table in tables) for way in ways
    }
    best = min(ways, key=worst.__getitem__)
    return PANELS if worst[PANELS] <= _MARGIN * worst[best] else best


def _measured_width(depth: int, width: int, dtype: torch.dtype) -> int:
    most: int = _WEIGHT_BYTES // (depth * dtype.itemsize) // PANEL * PANEL
    return min(width, max(most, PANEL))


def _ways_for(dtype: torch.dtype) -> tuple[str, ...]:
    if dtype != torch.float32:
        return (PANELS, COLUMNS, AS_IT_IS, _ONE_THREAD)
    return (PANELS, *([MKL] if has_mkl() else []), COLUMNS, AS_IT_IS, _NARROW, _ONE_THREAD)


def _seconds(rows: int, depth: int, width: int, dtype: torch.dtype) -> Mapping[str, float]:
    name = str(dtype).removeprefix("torch.")
    return jit.measured(
        f"linear {name} {rows} x {depth} x {width}",
        _ways_for(dtype),
        lambda: products_to_measure(rows, depth, width, dtype),
        basis=f"{torch.__version__} {kernel_source('packed_linear').digest()}",
        threads=torch.get_num_threads(),
    )


def products_to_measure(
    rows: int, depth: int, width: int, dtype: torch.dtype
) -> dict[str, Callable[[], object]]:
    """Return what runs the product, over one weight after the other."""
    copies = min(_MOST_COPIES, math.ceil(_COLD_BYTES / (width * depth * dtype.itemsize)))
    x, weights = torch.ones(rows, depth, dtype=dtype), torch.ones(copies, width, depth, dtype=dtype)
    columns = weights.view(copies, depth, width)  # all elements are 1
    turns = itertools.cycle(range(copies))

    def over(panels: list[torch.Tensor]) -> Callable[[], object]:
        return lambda: packed_linear(x, panels[next(turns)], None, -width % PANEL)

    packed = over([pack_weight(weight) for weight in weights])

    def packed_on_one_thread() -> object:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return packed()
        finally:
            torch.set_num_threads(threads)

    ways: dict[str, Callable[[], object]] = {
        PANELS: packed,
        COLUMNS: lambda: torch.mm(x, columns[next(turns)]),
        AS_IT_IS: lambda: torch.mm(x, weights[next(turns)].t()),
        _ONE_THREAD: packed_on_one_thread,
    }
    if MKL in _ways_for(dtype):
        by_mkl = [pack_weight_mkl(weight, rows) for weight in weights]
        ways[MKL] = lambda: mkl_linear(x, by_mkl[next(turns)], None, width)
    if _NARROW in _ways_for(dtype):
        ways[_NARROW] = over([pack_weight(weight, torch.bfloat16) for weight in weights])
    return ways
