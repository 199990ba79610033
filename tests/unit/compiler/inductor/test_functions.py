"""Compiled functions give what the device's eager operators give: many in one program, to be quick.
Each by itself: tests/sweeps/test_compiled_functions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.compiled_functions import (
    DTYPES,
    EAGER,
    INDEXED,
    POINTWISE,
    REDUCTIONS,
    ROWS,
    Row,
    compare,
)

from bringup.compiler.inductor.functions import Functions

QUICK = {
    "pointwise": [row for row in POINTWISE if not row.gradient],
    "dtypes": DTYPES[:11],
    "reductions": REDUCTIONS[1:17:2],
    "indexed": INDEXED[:6:2] + INDEXED[8:16:3],
    "eager": EAGER[5:7],
}


def _together(rows: Sequence[Row]) -> Row:
    """Return one row that computes all of these."""
    counts = [len(row.inputs()) for row in rows]

    def function(*inputs: Any) -> list[Any]:
        given = iter(inputs)
        return [
            row.function(*(next(given) for _ in range(count)))
            for row, count in zip(rows, counts, strict=True)
        ]

    return Row("", function, lambda: tuple(v for row in rows for v in row.inputs()))


@pytest.mark.parametrize("group", QUICK)
def test_compiled_functions_give_what_eager_operators_give(group: str) -> None:
    compare(_together(QUICK[group]), "npu")


def test_gradients_are_compiled_too() -> None:
    compare(ROWS["layer_norm"], "npu")


def test_a_wrong_function_in_generated_code_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Functions, "sub", staticmethod(Functions.add))
    with (
        torch._inductor.config.patch(force_disable_caches=True),
        pytest.raises(AssertionError, match="Mismatched elements"),
    ):
        compare(ROWS["mean_keepdim"]._replace(gradient=False), "npu")


def test_own_functions_are_within_their_bound_over_the_whole_range() -> None:
    functions = [torch.exp, torch.log, torch.tanh, torch.erf]
    x = torch.arange(-(1 << 31), 1 << 31, 19997).to(torch.int32).view(torch.float32)
    found = torch.compile(lambda x: [function(x) for function in functions])(x.to("npu"))
    least = torch.finfo(torch.float32).tiny
    for function, given in zip(functions, found, strict=True):
        exact = function(x.double())
        differs = given.cpu().view(torch.int32) != exact.float().view(torch.int32)
        differs &= ~(given.cpu().isnan() & exact.isnan())
        _, exponent = torch.frexp(exact.abs().clamp(min=least))
        units = (given.cpu() - exact).abs() / torch.ldexp(torch.ones_like(exact), exponent - 24)
        assert units[differs].nan_to_num(torch.inf).max() <= 1.5, function
