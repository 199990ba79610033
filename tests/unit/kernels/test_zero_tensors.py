"""Tensors of zeros without memory, which forward-mode gradients make, as arguments of kernels."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from bringup import jit, kernels, ops


def zeros(*sizes: int) -> torch.Tensor:
    return torch._efficientzerotensor(sizes)


@pytest.mark.parametrize("mode", [None, "serve"])
def test_a_compiled_product_of_one_is_eagers(mode: str | None) -> None:
    def gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return functional.silu(gate) * up

    up = torch.randn(4, 8)
    with torch.no_grad():
        compiled = torch.compile(gated, backend="bringup", mode=mode)
        for gate in (zeros(4, 8), torch.ones(4, 8), zeros(4, 8)):
            assert torch.equal(compiled(gate, up), gated(gate, up))


def test_a_kernel_gets_memory_with_the_strides_of_the_argument() -> None:
    x, weight = zeros(3, 8), torch.ones(8)
    assert torch.equal(kernels.rms_norm(x, weight), torch.zeros(3, 8))
    assert torch.equal(kernels.silu_mul(x, torch.ones(3, 8)), torch.zeros(3, 8))
    assert torch.equal(kernels.silu_mul(torch.ones(3, 8), x), torch.zeros(3, 8))


SOURCE = """
#include <stdint.h>
int add_all(float* out, const float* a, const float* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] += a[i] + b[i];
  return 0;
}
"""


def test_one_that_a_kernel_writes_is_refused() -> None:
    add = ops.kernel_op(
        "zeros::add_all(Tensor(a!) out, Tensor a, Tensor b) -> ()",
        source=jit.Source(text=SOURCE, name="add_all.c"),
        entry="add_all",
        args="ptr(out), ptr(a), ptr(b), numel(out)",
        checks=ops.same_shape("out", "a", "b"),
    )
    try:
        out = torch.ones(4)
        add(out, zeros(4), torch.ones(4))
        assert out.tolist() == [2.0] * 4
        with pytest.raises(RuntimeError, match=r"add_all writes .* zero tensor.*\.clone\(\)"):
            add(zeros(4), out, out)
    finally:
        add.undefine()


def test_gradients_flow_past_one() -> None:
    gate, up = zeros(2, 8), torch.randn(2, 8, requires_grad=True)
    kernels.silu_mul(gate, up).sum().backward()
    assert up.grad is not None
    assert torch.equal(up.grad, torch.zeros(2, 8))
