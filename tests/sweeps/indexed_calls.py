"""Random calls of `x[i, :, j]` on a device against the CPU: shapes, layouts, indices that count
from the end, lie outside, are repeated along dimensions, or are none.
"""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sweeps.support import examples
from torch import Tensor

from bringup import devices

DTYPES = [
    (torch.float32, torch.int64),
    (torch.bool, torch.int64),
    (torch.float16, torch.int32),
]
Call = tuple[Tensor, list[Tensor | None]]


def laid_out(draw: Any, made: Tensor) -> Tensor:
    """The same elements in another order of dimensions, and with gaps."""
    order = draw(st.permutations(range(made.dim())))
    step = draw(st.sampled_from([1, 1, 2]))
    spread = torch.empty([made.shape[d] * step for d in order], dtype=made.dtype)
    lies = spread.permute([order.index(d) for d in range(made.dim())])
    return lies[(slice(None, None, step),) * made.dim()].copy_(made) if made.dim() else made


@st.composite
def calls(draw: Any) -> Call:
    dtype, of_indices = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 4, 4, 0]), min_size=1, max_size=6))
    x = laid_out(draw, torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype))
    common = draw(st.lists(st.sampled_from([1, 2, 3, 3, 0]), max_size=5))
    taken = draw(st.lists(st.booleans(), min_size=1, max_size=len(shape)))
    taken[draw(st.integers(0, len(taken) - 1))] = True
    indices: list[Tensor | None] = []
    for size, has in zip(shape, taken, strict=False):
        own = [n if draw(st.booleans()) else min(n, 1) for n in common]
        own = own[draw(st.integers(0, len(own))) :]
        wide = draw(st.integers(0, 19)) == 0  # reaches beyond the dimension
        seed = draw(st.integers(0, 1 << 30))
        last = max(size, 1)
        given = torch.randint(
            -last - wide,
            last + wide,
            own,
            dtype=of_indices,
            generator=torch.Generator().manual_seed(seed),
        )
        indices.append(laid_out(draw, given) if has else None)
    return x, indices


def moved(value: Any, device: str) -> Any:
    if value is None or isinstance(value, list):
        return value and [moved(one, device) for one in value]
    like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    return like.copy_(value)


def outcome(call: Call, device: str) -> Tensor | None:
    try:
        made = torch.ops.aten.index.Tensor(moved(call[0], device), moved(call[1], device))
        values = made.cpu()
    except (RuntimeError, IndexError):
        return None
    return torch.empty_strided(made.shape, made.stride(), dtype=made.dtype).copy_(values)


def compare(device: str) -> int:
    """Raise for a call whose result is not the CPU's, or lies as nothing promised; return how many
    calls the device's own kernel took.
    """

    @examples(60, 20_000)
    @given(calls())
    def check(call: Call) -> None:
        wanted, got = outcome(call, "cpu"), outcome(call, device)
        assert (wanted is None) == (got is None), (call, wanted, got)
        if wanted is not None and got is not None:
            assert wanted.equal(got), (call, wanted, got)
            # Where x is permuted, torch's Meta kernel promises another layout than the CPU gives,
            # which is that of calls that fall back.
            x, indices = moved(call[0], "meta"), moved(call[1], "meta")
            promised = torch.ops.aten.index.Tensor(x, indices)
            layouts = (promised.stride(), wanted.stride())
            assert got.numel() == 0 or got.stride() in layouts, (call, got.stride())

    devices.fallback_report(reset=True)
    check()
    rows = devices.fallback_report().native
    return sum(row.calls for row in rows if row.operator == "aten::index.Tensor")
