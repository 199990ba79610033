"""The pass library in bfloat16 and float16: what it finds, and what it leaves and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.passes.support import empty_registry, traced
from torch.nn import functional

from bringup import compiler
from bringup.kernels.patterns import register_patterns

__all__ = ["empty_registry", "traced"]

Tensor = torch.Tensor
NARROW = (torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def _library(empty_registry: Any) -> None:
    register_patterns()
    torch.manual_seed(7)


def llama_norm(x: Tensor, weight: Tensor, eps: Any = 1e-6) -> Tensor:
    wide = x.to(torch.float32)
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x * cos + torch.cat([-high, low], -1) * sin


def llama_block(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + y
    return llama_norm(total, weight), total


def norm_with_sum(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + y
    return functional.layer_norm(total, total.shape[-1:], weight, weight), total


X, Y, W = torch.randn(3, 5, 24), torch.randn(3, 5, 24), torch.randn(24)
Q, TABLE = torch.randn(2, 5, 3, 8), torch.randn(1, 1, 5, 8)
FOUND: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], dict[str, int]]] = {
    "rms norm": (lambda x, w: llama_norm(x, w), (X, W), {"RmsNorm": 1, "NarrowRmsNorm": 1}),
    "rms norm of a sum": (llama_block, (X, Y, W), {"NarrowRmsNorm": 1, "AddRmsNorm": 1}),
    "layer norm of a sum": (
        lambda x, y, w: functional.layer_norm(x + y, (24,), w, w),
        (X, Y, W),
        {"AddLayerNorm": 1},
    ),
    "layer norm and its sum": (norm_with_sum, (X, Y, W), {"AddLayerNorm": 1}),
    "swiglu": (lambda gate, up: functional.silu(gate) * up, (X, Y), {"SwiGlu": 1}),
    "rotary": (
        lambda q, cos, sin: rotated(q.transpose(1, 2), cos, sin),
        (Q, TABLE, TABLE.flip(2)),
        {"Rotary": 1},
    ),
}


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", FOUND)
def test_it_is_found_and_gives_what_eager_gives(traced: Any, name: str, dtype: torch.dtype) -> None:
    function, wide, matches = FOUND[name]
    given = [item.to(dtype) for item in wide]
    module = traced(function, *given)
    found = compiler.apply_passes(module).matches
    assert {key: found[f"Library{key}"] for key in matches} == matches
    torch.testing.assert_close(module(*given), function(*given))


@pytest.mark.parametrize("dtype", NARROW)
def test_eps_known_only_at_run_time_keeps_its_dtype(traced: Any, dtype: torch.dtype) -> None:
    """Rounded to float16, 1e-8 would be 0 and a row of zeros NaN."""
    x, weight, eps = torch.zeros(2, 8, dtype=dtype), torch.ones(8, dtype=dtype), torch.tensor(1e-8)
    module = traced(llama_norm, x, weight, eps)
    assert compiler.apply_passes(module).matches["LibraryNarrowRmsNorm"] == 1
    assert torch.equal(module(x, weight, eps), x)


def tanh_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))


REFUSED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], str]] = {
    "RmsNorm": (
        lambda x, w: w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
        (X, W),
        "its squares are rounded",
    ),
    "TanhGelu": (tanh_gelu, (X,), "the formula rounds at each step"),
    "BiasGelu": (
        lambda b, x, w: functional.gelu(torch.addmm(b, x, w).view(3, 1, 24)),
        (W, X[:, 0], torch.randn(24, 24)),
        "the product would be rounded before the bias is added",
    ),
    "NarrowRmsNorm": (
        lambda x, w: (
            w * (y := x.double()).mul(torch.rsqrt(y.pow(2).mean(-1, True) + 1e-6)).to(x.dtype)
        ),
        (X, W),
        "it is computed in float64, not in float32",
    ),
}


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_another_result_stays_and_says_why(
    traced: Any, name: str, dtype: torch.dtype
) -> None:
    function, wide, words = REFUSED[name]
    given = [item.to(dtype) for item in wide]
    module = traced(function, *given)
    result = compiler.apply_passes(module)[f"Library{name}"]
    assert result.matches == 0 < result.refused
    assert words in "".join(map(str, result.near_misses))
    assert torch.equal(module(*given), function(*given))


def test_weight_of_another_dtype_is_left_alone(traced: Any) -> None:
    def mixed(x: Tensor, weight: Tensor) -> Tensor:
        return llama_norm(x, weight)

    given = (X.bfloat16(), W)
    module = traced(mixed, *given)
    result = compiler.apply_passes(module)["LibraryNarrowRmsNorm"]
    assert (result.matches, result.refused) == (0, 1)
    torch.testing.assert_close(module(*given), mixed(*given))
