"""The backward of the shipped operators: against finite differences and eager autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from bringup import kernels

Tensor = torch.Tensor
Function = Callable[..., Any]

NARROW = (torch.bfloat16, torch.float16)
# Of the largest gradient: eager rounds between the operators of its backward.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}


@pytest.fixture(autouse=True)
def _operators() -> None:
    kernels.load()
    torch.manual_seed(7)


def _layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    total = x + residual
    return functional.layer_norm(total, x.shape[-1:], weight, bias, 1e-3), total


def _rms_norm(x: Tensor, weight: Tensor | None, eps: Any = 1e-3) -> Tensor:
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x * scale if weight is None else x * scale * weight


def _rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return (x * cos + torch.cat([-high, low], -1) * sin).transpose(1, 2)


def _ops() -> Any:
    return torch.ops.bringup


# Operator, formula, shapes of its tensors.
CASES: dict[str, tuple[Function, Function, list[tuple[int, ...]]]] = {
    "add_layer_norm": (
        lambda *args: _ops().add_layer_norm(*args, 1e-3),
        lambda *args: _layer_norm(*args)[0],
        [(2, 3, 5), (2, 3, 5), (5,), (5,)],
    ),
    "add_layer_norm_sum": (
        lambda *args: _ops().add_layer_norm_sum(*args, 1e-3),
        _layer_norm,
        [(2, 3, 5), (2, 3, 5), (5,), (5,)],
    ),
    "rms_norm": (
        lambda x, weight: _ops().rms_norm(x, weight, 1e-3),
        _rms_norm,
        [(2, 3, 5), (5,)],
    ),
    "rms_norm without weight": (
        lambda x: _ops().rms_norm(x, None, 1e-3),
        lambda x: _rms_norm(x, None),
        [(2, 3, 5)],
    ),
    "rms_norm of one dimension": (
        lambda x, weight: _ops().rms_norm(x, weight, 1e-3),
        _rms_norm,
        [(5,), (5,)],
    ),
    "add_rms_norm": (
        lambda *args: _ops().add_rms_norm(*args, 1e-3),
        lambda x, residual, weight: (_rms_norm(x + residual, weight), x + residual),
        [(2, 3, 5), (2, 3, 5), (5,)],
    ),
    "rotary": (lambda *args: _ops().rotary(*args), _rotary, [(2, 3, 4, 6), (1, 1, 4, 6), (6,)]),
    "silu_mul": (
        lambda *args: _ops().silu_mul(*args),
        lambda gate, up: functional.silu(gate) * up,
        [(2, 3, 5), (2, 3, 5)],
    ),
    "bias_gelu": (
        lambda *args: _ops().bias_gelu(*args),
        lambda x, bias: functional.gelu(x + bias),
        [(2, 3, 5), (5,)],
    ),
    "bias_gelu of no rows": (
        lambda *args: _ops().bias_gelu(*args),
        lambda x, bias: functional.gelu(x + bias),
        [(0, 5), (5,)],
    ),
}


def _given(name: str, dtype: torch.dtype) -> list[Tensor]:
    tensors = [torch.randn(shape).to(dtype) for shape in CASES[name][2]]
    if name == "rotary":
        tensors[2] = tensors[2].expand(2, 1, 1, 6).contiguous()
    return [tensor.requires_grad_() for tensor in tensors]


def _results(function: Function, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    result = function(*tensors)
    return result if isinstance(result, tuple) else (result,)


def _gradients(function: Function, tensors: list[Tensor], seed: int = 11) -> tuple[Tensor, ...]:
    results = _results(function, tensors)
    torch.manual_seed(seed)
    given = [torch.randn(item.shape).to(item.dtype) for item in results]
    return torch.autograd.grad(results, tensors, given)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_finite_differences_twice(name: str) -> None:
    operator, tensors = CASES[name][0], _given(name, torch.float64)
    assert torch.autograd.gradcheck(operator, tensors)
    assert torch.autograd.gradgradcheck(operator, tensors)


@pytest.mark.parametrize("dtype", [torch.float32, *NARROW])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_eager_s_and_as_near_to_the_exact_ones(name: str, dtype: torch.dtype) -> None:
    operator, formula, _ = CASES[name]
    tensors = _given(name, dtype)
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    exact = _gradients(formula, wide)
    eager = _gradients(formula, tensors)
    for ours, theirs, true in zip(_gradients(operator, tensors), eager, exact, strict=True):
        assert (ours.dtype, ours.shape) == (dtype, true.shape)
        bound = TOLERANCE[dtype] * float(true.abs().max() if true.numel() else 0)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=bound)
        torch.testing.assert_close(ours.double(), true, rtol=0, atol=bound / 2)


@pytest.mark.parametrize("dtype", [torch.float64, *NARROW])
@pytest.mark.parametrize("added", [False, True])
def test_eps_that_is_a_tensor_has_a_gradient(added: bool, dtype: torch.dtype) -> None:
    eps = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    x, residual = (torch.randn(3, 5).to(dtype).requires_grad_() for _ in range(2))
    weight = torch.randn(5).to(dtype).requires_grad_()

    def operator(eps: Tensor, x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
        if added:
            return _ops().add_rms_norm_eps(x, residual, weight, eps)[0]  # type: ignore[no-any-return]
        return _ops().rms_norm_eps(x, weight, eps) + 0 * residual  # type: ignore[no-any-return]

    if dtype is torch.float64:
        assert torch.autograd.gradcheck(operator, (eps, x, residual, weight))
    operator(eps, x, residual, weight).sum().backward()
    total = (x + residual if added else x).detach().double()
    expected = torch.autograd.grad(_rms_norm(total, weight.double(), eps).sum(), eps)[0]
    assert eps.grad is not None
    assert eps.grad.dtype is torch.float64
    torch.testing.assert_close(eps.grad, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wanted", range(3))
def test_gradient_of_one_argument_alone(wanted: int) -> None:
    operator, formula, _ = CASES["add_rms_norm"]
    tensors = [item.detach() for item in _given("add_rms_norm", torch.float32)]
    tensors[wanted].requires_grad_()
    got = [
        torch.autograd.grad(_results(function, tensors)[0].sum(), tensors[wanted])[0]
        for function in (operator, formula)
    ]
    torch.testing.assert_close(got[0], got[1])


@pytest.mark.parametrize("name", ["add_layer_norm_sum", "rotary", "silu_mul"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_training_step_has_the_gradients_of_the_eager_one(
    name: str, dtype: torch.dtype
) -> None:
    torch.compiler.reset()
    operator, tensors = CASES[name][0], _given(name, dtype)
    compiled = torch.compile(operator, backend="aot_eager", fullgraph=True)
    for got, expected in zip(
        _gradients(compiled, tensors), _gradients(operator, tensors), strict=True
    ):
        torch.testing.assert_close(got, expected)
