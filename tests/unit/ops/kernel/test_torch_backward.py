"""A backward that torch has already: a kernel operator takes an ATen operator for its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import kernel

from bringup import ops

LAYER_NORM = kernel(
    """
  const auto* x = TENSOR(0);
  const int64_t rows = x->shape[0], width = x->shape[1];
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = DATA(0) + r * width;
    double mean = 0, spread = 0;
    for (int64_t i = 0; i < width; ++i) mean += row[i] / width;
    for (int64_t i = 0; i < width; ++i) spread += (row[i] - mean) * (row[i] - mean) / width;
    const double scale = 1 / __builtin_sqrt(spread + DOUBLE(4));
    for (int64_t i = 0; i < width; ++i) {
      const double weight = args[2] ? DATA(2)[i] : 1, bias = args[3] ? DATA(3)[i] : 0;
      DATA(5)[r * width + i] = (row[i] - mean) * scale * weight + bias;
    }
    DATA(6)[r] = mean;
    DATA(7)[r] = scale;
  }"""
)


@pytest.fixture
def layer_norm(define: Define) -> ops.KernelOperator:
    """Over the last dimension of [rows, width]; its backward has `bool[3] output_mask`."""
    statistics = ops.empty("input.shape[0]", "1", dtype="input")
    operator = define(
        "layer_norm(Tensor input, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None,"
        " float eps=1e-05) -> (Tensor out, Tensor mean, Tensor rstd)",
        source=LAYER_NORM,
        outputs=[ops.empty_like("input"), statistics, statistics],
        checks=ops.same_dtype("input", "weight", "bias"),
        dtypes={"T": "input"},
    )
    operator.register_backward(
        "aten::native_layer_norm_backward",
        save=("input", "mean", "rstd", "weight", "bias"),
        gradients=("input", "weight", "bias"),
        non_differentiable=("mean", "rstd"),
    )
    return operator


@pytest.mark.parametrize("path", [lambda op: op, lambda op: op.overload], ids=["fast", "slow"])
@pytest.mark.parametrize("wanted", [*itertools.product((True, False), repeat=3)])
@pytest.mark.parametrize("absent", [(), ("bias",), ("weight", "bias")])
def test_a_mask_of_torch_s_own_operator_asks_for_what_is_needed(
    layer_norm: ops.KernelOperator,
    path: Callable[[Any], Any],
    wanted: tuple[bool, ...],
    absent: tuple[str, ...],
) -> None:
    """Arguments that are None, gradients that nobody wants."""
    names, sizes = ("input", "weight", "bias"), ((4, 6), (6,), (6,))
    values = {
        name: torch.randn(size, dtype=torch.float64)
        for name, size in zip(names, sizes, strict=True)
    }

    def leaves() -> list[torch.Tensor | None]:
        return [
            None if name in absent else values[name].clone().requires_grad_(needs)
            for name, needs in zip(names, wanted, strict=True)
        ]

    ours, theirs = leaves(), leaves()
    out, mean, rstd = path(layer_norm)(ours[0], [6], ours[1], ours[2])
    expected = torch.nn.functional.layer_norm(theirs[0], (6,), theirs[1], theirs[2])
    torch.testing.assert_close(out, expected)
    assert out.requires_grad == expected.requires_grad
    assert not mean.requires_grad
    assert not rstd.requires_grad
    if not out.requires_grad:
        return
    grad = torch.randn(4, 6, dtype=torch.float64)
    out.backward(grad)
    expected.backward(grad)
    for mine, other in zip(ours, theirs, strict=True):
        if mine is not None and other is not None:
            torch.testing.assert_close(mine.grad, other.grad)


def test_a_backward_of_torch_has_a_second_derivative(layer_norm: ops.KernelOperator) -> None:
    """Its own formula is torch's."""
    x, weight = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((2, 3), (3,)))
    assert torch.autograd.gradgradcheck(lambda a, w: layer_norm(a, [3], w)[0], (x, weight))
