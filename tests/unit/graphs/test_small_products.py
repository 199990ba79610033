"""Products of next to no elements: which kernel torch takes decides the bits of NaN and zero."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from tests.sweeps.replay_programs import FULL, same
from torch import Tensor

from bringup import graphs

SIZES = (0, 1, 2, 3) if FULL else (0, 1, 3)
SPECIAL = torch.tensor([torch.nan, -torch.nan, torch.inf, -torch.inf, -0.0, 0.0, 1.5, -2.0])
SCALES = ((1, 1), (0, 1), (1, 0), (0.5, -2))
LAYOUTS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.clone(),
    lambda x: x.mT.contiguous().mT,
    lambda x: torch.stack([x, x], -1)[..., 0],
]


def products(a: Tensor, b: Tensor, c: Tensor, v: Tensor) -> list[Tensor]:
    """Return products of matrices and of one with column v, alone and added to c."""
    v = v[:, 0]
    made = [a @ b, torch.bmm(a[None], b[None]), torch.mv(a, v), torch.dot(v, v)]
    for beta, alpha in SCALES:
        scales = {"beta": beta, "alpha": alpha}
        made += [
            torch.addmm(c, a, b, **scales),
            torch.baddbmm(c[None], a[None], b[None], **scales),
            torch.addmv(c.sum(1), a, v, **scales),
            c.clone().addmm_(a, b, **scales),
            c.clone()[None].baddbmm_(a[None], b[None], **scales),
        ]
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_small_products_have_the_bits_of_eager(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    before = torch.get_num_threads()
    try:
        # Single elements in every layout: torch clones some.
        for m, k, n in [*itertools.product(SIZES, repeat=3), *[(1, 1, 1)] * 12]:
            torch.set_num_threads(1 + (m + k + n) % 2)
            given = [torch.zeros(size, dtype=dtype) for size in ((m, k), (k, n), (m, n), (k, 1))]
            numbers = torch.randint(3, (4,)).tolist()
            inputs = [LAYOUTS[i](x) for i, x in zip(numbers, given, strict=True)]
            graph = graphs.CapturedGraph(optimize=1)
            with torch.no_grad(), graphs.capture(graph):
                results = products(*inputs)
            for _ in range(8 if m == k == n == 1 else 2):
                for x in inputs:
                    x.copy_(SPECIAL[torch.randint(len(SPECIAL), x.shape)])
                graph.replay()
                assert same(results, products(*inputs)), (m, k, n, numbers)
    finally:
        torch.set_num_threads(before)
