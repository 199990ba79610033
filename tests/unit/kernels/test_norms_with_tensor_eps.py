"""RMSNorm whose eps is a tensor known only at run time (a float attribute in a dynamic graph)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.unit.passes.support import empty_registry, traced

from bringup import compiler, kernels
from bringup.errors import ContractError, KernelError
from bringup.kernels.patterns import register_patterns

__all__ = ["empty_registry", "traced"]

FLOATS = (torch.float32, torch.float64)
SHAPES = ((1, 1), (7, 384), (3, 5, 13), (2, 0, 8), (0, 8), (8,))
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-13}


@pytest.fixture(autouse=True)
def operators() -> Any:
    kernels.load()
    torch.manual_seed(7)
    return torch.ops.bringup


def written_out(x: torch.Tensor, weight: torch.Tensor | None, eps: torch.Tensor) -> torch.Tensor:
    """What the operators stand for, in doubles."""
    x, eps = x.double(), eps.double()
    normalized = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return normalized if weight is None else normalized * weight.double()


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    bound = TOLERANCE[got.dtype]
    torch.testing.assert_close(got, expected.to(got.dtype), atol=bound, rtol=bound)


@pytest.mark.parametrize("eps", [1e-6, 0.5, 0.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm_reads_eps_from_memory(operators, shape, dtype, weighted, eps) -> None:
    x = torch.randn(shape, dtype=dtype)
    weight = torch.randn(shape[-1], dtype=dtype) if weighted else None
    given = torch.tensor(eps, dtype=dtype)
    got = operators.rms_norm_eps(x, weight, given)
    close(got, written_out(x, weight, given))
    assert torch.equal(got, operators.rms_norm(x, weight, given.item()))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_add_rms_norm_reads_eps_from_memory(operators, shape, dtype) -> None:
    x, residual = torch.randn(2, *shape, dtype=dtype)
    weight, eps = torch.randn(shape[-1], dtype=dtype), torch.tensor(1e-3, dtype=dtype)
    got, total = operators.add_rms_norm_eps(x, residual, weight, eps)
    assert torch.equal(total, x + residual)
    close(got, written_out(total, weight, eps))
    expected = operators.add_rms_norm(x, residual, weight, eps.item())
    assert all(map(torch.equal, (got, total), expected))


def test_any_strides_are_taken(operators) -> None:
    x, residual = torch.randn(5, 2, 8).transpose(0, 1), torch.randn(2, 5, 16)[..., ::2]
    weight, eps = torch.randn(8, 3)[:, 1], torch.tensor([0.0, 1e-3])[1]
    close(operators.rms_norm_eps(x, weight, eps), written_out(x, weight, eps))
    got, total = operators.add_rms_norm_eps(x, residual, weight, eps)
    close(got, written_out(x + residual, weight, eps))
    assert torch.equal(total, x + residual)


X, W, EPS = torch.randn(2, 8), torch.randn(8), torch.tensor(1e-6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((X, W, EPS.half()), "eps.*float16"),
        ((X, W, EPS[None]), r"eps must have shape \[\]"),
        ((X, W[:5], EPS), r"weight must have shape \[8\]"),
        ((X.int(), W.int(), EPS), "got torch.int32"),
    ],
)
def test_wrong_input_names_operator_and_argument(operators, arguments, words) -> None:
    with pytest.raises(ContractError, match=f"bringup::rms_norm_eps.*{words}"):
        operators.rms_norm_eps(*arguments)
    x, *rest = arguments
    with pytest.raises(ContractError, match=f"bringup::add_rms_norm_eps.*{words}"):
        operators.add_rms_norm_eps(x, x, *rest)


def test_row_without_elements_is_an_error(operators) -> None:
    with pytest.raises(KernelError, match="x needs a last dimension of at least 1"):
        operators.rms_norm_eps(torch.randn(3, 0), None, EPS)


@pytest.mark.parametrize("eps_dtype", FLOATS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("added", [False, True])
def test_library_finds_them_whatever_the_dtype_of_eps(traced, added, dtype, eps_dtype) -> None:
    def block(x, residual, weight, eps):
        total = x + residual if added else x
        normalized = weight * (total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + eps))
        return (normalized, total) if added else normalized

    given = (
        *torch.randn(2, 3, 8, dtype=dtype),
        torch.randn(8, dtype=dtype),
        torch.tensor(0.25, dtype=eps_dtype),
    )
    register_patterns()
    module = traced(block, *given)
    found = compiler.apply_passes(module).matches
    assert (found["LibraryRmsNorm"], found["LibraryAddRmsNorm"]) == (1, int(added))
    expected = block(*given)
    for got, wanted in zip(
        *(
            (item,) if isinstance(item, torch.Tensor) else item
            for item in (module(*given), expected)
        ),
        strict=True,
    ):
        close(got, wanted)
