"""Compiled functions give what the device's eager operators give: many in one program, to be quick.
Each by itself: tests/sweeps/test_compiled_functions.py.
"""

from __future__ import annotations

import math
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
from torch._dynamo.utils import counters

from bringup.compiler.inductor import launch

QUICK = {
    "pointwise": [row for row in POINTWISE if not row.gradient],
    "dtypes": DTYPES[:11],
    "reductions": REDUCTIONS[1:17:2],
    "indexed": INDEXED[:6:2] + INDEXED[8:16:3] + INDEXED[-1:],
    "eager": EAGER[5:7],
    "copied": [ROWS[name] for name in ("complex_copies", "complex_of_expanded", "negative_bit")],
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


def test_a_kernel_of_many_operators_has_a_name_that_a_file_can_have() -> None:
    unary = [f"{n}{end}" for n in ("sin", "cos", "tan") for end in ("", "h")]
    unary += [f"a{name}" for name in unary] + ["exp", "erf", "expm1", "log1p", "rsqrt", "trunc"]
    unary += ["reciprocal", "round", "frac", "sign", "floor", "ceil", "square", "sigmoid", "selu"]
    unary += ["abs", "neg", "sqrt", "log", "digamma", "lgamma", "log2", "exp2", "erfc", "log10"]

    def function(x: torch.Tensor) -> torch.Tensor:
        for name in unary:
            x = getattr(torch, name)(x)
        return torch.nn.functional.hardswish(torch.nn.functional.leaky_relu(x))

    compare(Row("", function, lambda: (torch.rand(8),)), "npu")


def test_special_functions_are_torchs_at_ends_poles_and_limits() -> None:
    named = torch.special
    functions = [getattr(named, name) for name in dir(named) if "polynomial" in name]
    functions += [named.zeta, lambda x, _: named.digamma(x)]
    functions += [lambda x, _, order=order: torch.polygamma(order, x) for order in range(4)]
    given = [0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, -2.5, 0.3, 7.25, -6, 10, 0.9, -0.9, 0.02, 88.5, 1e10]
    given += [math.inf, -math.inf, math.nan]
    x = torch.tensor(given, dtype=torch.float64)[:, None].expand(-1, 13).contiguous()
    degrees = [-1, 0, 1, 2, 4, 5, 6, 7, 9, 40, 513, 2.5, math.nan]
    n = torch.tensor(degrees, dtype=torch.float64).expand(len(given), -1).contiguous()
    compiled = torch.compile(lambda x, n: [function(x, n) for function in functions])
    expected = [function(x, n) for function in functions]
    torch.testing.assert_close(
        [one.cpu() for one in compiled(x.to("npu"), n.to("npu"))],
        expected,
        rtol=1e-9,
        atol=1e-9,
        equal_nan=True,
    )
    assert len(functions) == 18
    assert not counters["bringup_eager_nodes"]


def test_complex_numbers_are_computed_as_pairs_of_real_ones() -> None:
    def rotated(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.view_as_complex(x.reshape(3, 4, 4, 2)) * turns).flatten(2)

    def computed(z: torch.Tensor, x: torch.Tensor, turns: torch.Tensor) -> list[torch.Tensor]:
        row, plain = z[1], x.view(3, 4, 8)[..., :4].double()
        one = [
            z * turns,
            z * 2,
            z * (1 - 3j),
            row * x[0, :, :4],
            plain * z,
            x[0, 0] * 1j,
            z[0, 0, 0] * z,
        ]
        two = [(-z).abs(), z.conj().clone() * z, torch.conj_physical(z.mT), x.to(torch.complex64)]
        pad, last = torch.nn.functional.pad, torch.channels_last
        one += [z.clone(), z.mT.clone(), z[None].clone(memory_format=last), z * number]
        return [*one, *two, (x > 0).to(torch.complex128), pad(z[:, 1:], (1, 2)), rotated(x, turns)]

    number = torch.tensor(2 + 1j)
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(3, 4, 4, dtype=torch.complex64, generator=generator)
    x = torch.randn(3, 4, 8, generator=generator)
    turns = torch.polar(torch.ones(4, 4), torch.randn(4, 4, generator=generator)).conj()
    got = torch.compile(computed)(*(one.to("npu") for one in (z, x, turns)))
    expected = [one.resolve_conj() for one in computed(z, x, turns)]
    torch.testing.assert_close([one.cpu().resolve_conj() for one in got], expected)
    assert [one.stride() for one in got[7:10]] == [one.stride() for one in expected[7:10]]
    eager = {name.split(":")[0]: n for name, n in counters["bringup_eager_nodes"].items()}
    # what is out of order, and a number of the host
    assert eager == {"aten.clone.default": 4, "aten.mul.Tensor": 1}


def test_gradients_are_compiled_too() -> None:
    compare(ROWS["layer_norm"], "npu")


@pytest.mark.parametrize(
    ("name", "operator", "other"),
    [
        ("mean_keepdim", " - ", " + "),
        ("sum_columns", "] + ", "] - "),
        ("softmax", "max_float(", "min_float("),
        ("where", "tmp0 > tmp1", "tmp0 < tmp1"),
        ("slice", "68 + x0", "67 + x0"),
        ("gather", "9*x1", "8*x1"),
    ],
)
def test_another_operator_in_a_generated_kernel_is_noticed(
    name: str, operator: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, make = [], launch.generated_kernel

    def changed(kernel: str, text: str, **keywords: Any) -> Any:
        texts.append(text)
        return make(kernel, text.replace(operator, other), **keywords)

    monkeypatch.setattr(launch, "generated_kernel", changed)
    with (
        torch._inductor.config.patch(force_disable_caches=True),
        pytest.raises(AssertionError, match=r"Mismatched elements|not close"),
    ):
        compare(ROWS[name]._replace(gradient=False), "npu")
    assert any(operator in text for text in texts)


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
