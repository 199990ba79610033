"""Products of every pair of element types, with scales of every granularity and dtype, in every
layout and to every result, against float64; and scales of batches and groups against those of
their parts.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from tests.sweeps.support import part
from tests.unit.kernels.matmul_support import LAYOUTS
from tests.unit.kernels.scaled_support import (
    ELEMENTS,
    GRANULARITIES,
    RESULTS,
    SCALES,
    assert_near,
    element,
    product,
    scales_of,
    spread,
)
from torch import Tensor

from bringup import kernels

SIZES = ((1, 1, 1), (7, 33, 65), (130, 70, 300), (20, 600, 31), (0, 5, 4), (5, 4, 0))
CASES = [
    (
        pair,
        (of_a, GRANULARITIES[(i + i // 5) % 5]),
        (SCALES[i % 4], SCALES[i // 3 % 4]),
        (LAYOUTS[i % 5], LAYOUTS[i // 2 % 5]),
        RESULTS[i % 3],
    )
    for i, (pair, of_a) in enumerate(
        itertools.product(itertools.product(ELEMENTS, ELEMENTS), GRANULARITIES)
    )
]


def _named(case: tuple[object, ...]) -> str:
    return "-".join(str(x).replace("torch.", "") for x in case)


@pytest.mark.parametrize("case", part(CASES), ids=_named)
def test_scaled_product(case: tuple[object, ...], sweep_counts: Counter[str]) -> None:
    pair, granularities, dtypes, layouts, result = case
    torch.manual_seed(CASES.index(case))
    for m, n, k in SIZES:
        for block in (1, 16, 128):
            a = element((m, k), pair[0], layouts[0])
            b = element((k, n), pair[1], layouts[1])
            scale_a, block_a = scales_of(m, k, granularities[0], dtypes[0], "rows", block)
            scale_b, block_b = scales_of(k, n, granularities[1], dtypes[1], "columns", block)
            ours = kernels.scaled_matmul(
                a, b, scale_a, scale_b, block_a=block_a, block_b=block_b, out_dtype=result
            )
            of_a = spread(scale_a, m, k, block_a, "rows")
            of_b = spread(scale_b, k, n, block_b, "columns")
            assert_near(ours, *product(a, b, of_a, of_b))
            sweep_counts["products"] += 1
            options: dict[str, Any] = {
                "block_a": block_a, "block_b": block_b, "out_dtype": result,
            }  # fmt: skip
            if CASES.index(case) % 3:
                continue
            of_items = [_of_items(scale) for scale in (scale_a, scale_b)]
            twice = a.expand(2, m, k), b.expand(2, k, n)
            batch = kernels.scaled_matmul(*twice, *of_items, **options)
            assert torch.equal(batch[1], ours)
            rows = kernels.scaled_matmul(
                a, twice[1], scale_a, of_items[1], group_list=torch.tensor([m // 3, m]), **options
            )
            assert torch.equal(rows, ours)


def _of_items(scale: Tensor | None) -> Tensor | None:
    """The same scales for each of two matrices; one for all stays so."""
    return scale if scale is None or scale.shape == (1,) else scale.expand(2, *scale.shape)
