"""The shipped operators in bfloat16 and float16: rounded where eager rounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from bringup import kernels

Tensor = torch.Tensor
NARROW = (torch.bfloat16, torch.float16)
SHAPES = [(1,), (1, 1), (7, 384), (3, 5, 13), (2, 0, 8), (0, 4), (2, 33)]
NAN, INFINITY = math.nan, math.inf


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(7)


def is_rounded(ours: Tensor, exact: Tensor, times: int = 1) -> None:
    """Within so often half the distance of two numbers, and what float32 sums add to it."""
    assert ours.shape == exact.shape
    info = torch.finfo(ours.dtype)
    bound = exact.abs() * (times * info.eps / 2 + 3e-6) + 2e-6
    assert bool(((ours.double() - exact).abs() <= bound).all())


def almost_equal(ours: Tensor, eager: Tensor) -> None:
    """The same bits but where a rounding was a matter of float32's last digit."""
    torch.testing.assert_close(ours, eager)
    assert int((ours != eager).sum()) <= 1 + ours.numel() // 200


def given(*shape: int, dtype: torch.dtype, count: int = 1) -> Any:
    tensors = torch.randn(count, *shape).to(dtype)
    return tensors[0] if count == 1 else tensors


def layer_norm(total: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    wide = [item.double() for item in (total, weight, bias)]
    return functional.layer_norm(wide[0], total.shape[-1:], wide[1], wide[2], 1e-5)


def rms_norm(total: Tensor, weight: Tensor | None) -> Tensor:
    wide = None if weight is None else weight.double()
    return functional.rms_norm(total.double(), total.shape[-1:], wide, 1e-6)


@pytest.mark.bits
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("shape", SHAPES)
def test_norms_round_as_the_formula_does(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, residual = given(*shape, dtype=dtype, count=2)
    weight, bias = given(shape[-1], dtype=dtype, count=2)
    normalized, total = kernels.add_layer_norm_sum(x, residual, weight, bias, 1e-5)
    assert torch.equal(total, x + residual)
    is_rounded(normalized, layer_norm(total, weight, bias))
    assert torch.equal(kernels.add_layer_norm(x, residual, weight, bias, 1e-5), normalized)
    normalized, total = kernels.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual)
    is_rounded(normalized, rms_norm(total, weight), times=2)
    almost_equal(normalized, (rms_norm(total, None).to(dtype) * weight))
    assert torch.equal(kernels.rms_norm(total, weight, 1e-6), normalized)
    is_rounded(kernels.rms_norm(total, None, 1e-6), rms_norm(total, None))


@pytest.mark.bits
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("eps_dtype", [torch.float32, torch.float64])
def test_eps_that_is_a_tensor_is_not_rounded_to_16_bits(
    dtype: torch.dtype, eps_dtype: torch.dtype
) -> None:
    """1e-8 is 0 in float16, and x / 0 would be infinite."""
    kernels.load()
    x, weight = torch.zeros(2, 5, dtype=dtype), torch.ones(5, dtype=dtype)
    eps = torch.tensor(1e-8, dtype=eps_dtype)
    x[1] = 2e-4
    got = torch.ops.bringup.rms_norm_eps(x, weight, eps)
    assert torch.equal(got, kernels.rms_norm(x, weight, 1e-8))
    is_rounded(got, functional.rms_norm(x.double(), (5,), None, 1e-8))
    got, _ = torch.ops.bringup.add_rms_norm_eps(x, x, weight, eps)
    assert torch.equal(got, kernels.add_rms_norm(x, x, weight, 1e-8)[0])


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("shape", SHAPES)
def test_activations_round_as_the_formula_does(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, up = given(*shape, dtype=dtype, count=2) * 4
    bias = given(shape[-1], dtype=dtype)
    product = kernels.silu_mul(x, up)
    is_rounded(product, functional.silu(x.double()) * up.double(), times=2)
    almost_equal(product, functional.silu(x) * up)
    is_rounded(kernels.bias_gelu(x, bias), functional.gelu(x.double() + bias.double()))


@pytest.mark.bits
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("depth", [2, 22, 64, 80])
def test_rotary_rounds_as_the_formula_does(depth: int, dtype: torch.dtype) -> None:
    q = given(2, 7, 3, depth, dtype=dtype).transpose(1, 2)
    cos, sin = given(1, 1, 7, depth, dtype=dtype), given(2, 1, 1, depth, dtype=dtype)
    low, high = q.chunk(2, -1)
    expected = q * cos + torch.cat([-high, low], -1) * sin
    assert torch.equal(kernels.rotary(q, cos, sin).transpose(1, 2), expected)


@pytest.mark.bits
@pytest.mark.parametrize("dtype", NARROW)
def test_any_strides_are_taken(dtype: torch.dtype) -> None:
    x = given(5, 2, 8, dtype=dtype).transpose(0, 1)
    residual, weight = given(2, 5, 16, dtype=dtype)[..., ::2], given(8, 3, dtype=dtype)[:, 1]
    ours = kernels.add_rms_norm(x, residual, weight, 1e-6)
    dense = [item.contiguous() for item in (x, residual, weight)]
    assert all(map(torch.equal, ours, kernels.add_rms_norm(*dense, 1e-6)))
    gate, up = given(3, 5, 74, dtype=dtype).split(37, -1)
    assert torch.equal(
        kernels.silu_mul(gate, up), kernels.silu_mul(gate.contiguous(), up.contiguous())
    )


def every_value(dtype: torch.dtype) -> Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)


def same(ours: Tensor, expected: Tensor) -> None:
    """The same bits, but for those of NaN."""
    is_nan = expected.isnan()
    assert torch.equal(ours.isnan(), is_nan)
    bits = [item.masked_fill(is_nan, 0).view(torch.int16) for item in (ours, expected)]
    assert torch.equal(*bits)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("width", [64, 5], ids=["vectors", "single elements"])
def test_every_value_is_read_and_every_sum_rounded_as_by_torch(
    width: int, dtype: torch.dtype
) -> None:
    """Subnormal numbers, both zeros, infinities, NaN; ties, and sums beyond the largest number."""
    values = every_value(dtype)
    values = values[: len(values) // width * width].view(-1, width)
    weight = torch.ones(width, dtype=dtype)
    for other in (torch.zeros_like(values), values, values.flip(0), values.roll(997, 0)):
        total = kernels.add_rms_norm(values, other, weight, 1e-6)[1]
        same(total, values + other)


@pytest.mark.parametrize("dtype", [*NARROW, torch.float32])
@pytest.mark.parametrize("special", [NAN, INFINITY])
def test_rows_that_are_not_finite_stay_apart(dtype: torch.dtype, special: float) -> None:
    x, weight = given(3, 21, dtype=dtype), torch.ones(21, dtype=dtype)
    clean = kernels.rms_norm(x, weight, 1e-6)
    spoiled = x.clone()
    spoiled[1, 4] = special
    ours = kernels.rms_norm(spoiled, weight, 1e-6)
    assert torch.equal(ours[0::2], clean[0::2])
    assert bool(ours[1, 4].isnan())
    assert bool(kernels.add_layer_norm(spoiled, x, weight, weight)[1].isnan().all())
    gate = torch.tensor([[special, -INFINITY, 1.0]], dtype=dtype)
    expected = functional.silu(gate) * torch.tensor([[2.0, 1.0, 2.0]], dtype=dtype)
    ours = kernels.silu_mul(gate, torch.tensor([[2.0, 1.0, 2.0]], dtype=dtype))
    assert torch.equal(ours.isnan()[:, ::2], expected.isnan()[:, ::2])


def test_float16_overflows_where_a_result_does_and_nowhere_between() -> None:
    x = torch.full((2, 40), 60000.0, dtype=torch.float16)
    one = torch.ones(40, dtype=torch.float16)
    assert torch.equal(kernels.rms_norm(x, one, 1e-6), one.expand(2, 40))  # 60000^2 is infinite
    assert bool((kernels.add_rms_norm(x, x, one, 1e-6)[1] == INFINITY).all())
    assert bool((kernels.silu_mul(x, x) == INFINITY).all())
    assert torch.equal(kernels.silu_mul(x, one.expand(2, 40)), x)
    assert bool((kernels.bias_gelu(x, x[0]) == INFINITY).all())
    x[:, ::2] *= -1  # the sum of squares is 1.4e11
    assert torch.equal(kernels.add_layer_norm(x, x * 0, one, one * 0), x.sign())


@pytest.mark.parametrize("name", ["add_layer_norm", "rms_norm", "silu_mul", "bias_gelu", "rotary"])
@pytest.mark.parametrize("dtype", NARROW)
def test_kernel_is_built_ahead(name: str, dtype: torch.dtype) -> None:
    assert kernels.build(name, dtype).path.is_file()


@pytest.mark.parametrize("dtype", NARROW)
def test_fake_and_compiled_results_have_the_dtype(dtype: torch.dtype) -> None:
    kernels.load()
    torch.compiler.reset()
    x = given(4, 8, dtype=dtype)

    def block(x: Tensor) -> Tensor:
        normalized, total = torch.ops.bringup.add_rms_norm(x, x, x[0])
        return torch.ops.bringup.silu_mul(normalized, total)  # type: ignore[no-any-return]

    compiled: Callable[[Tensor], Tensor] = torch.compile(
        block, backend="aot_eager", fullgraph=True, dynamic=True
    )
    for rows in (4, 3, 1):
        ours = compiled(x[:rows])
        assert ours.dtype is dtype
        assert torch.equal(ours, block(x[:rows]))
