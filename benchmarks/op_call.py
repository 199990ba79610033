"""Rows: one call of a kernel operator on small tensors on cpu, where host overhead is everything.

Peers are operators of torch itself on the same tensors. The kernel is a plain loop over 16 floats.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from benchmarks._harness import Row, compare
from bringup import jit, ops

_BINARY = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const auto* x = static_cast<const DLTensor*>(args[0]);
  const auto* a = static_cast<const float*>(x->data);
  const auto* b = static_cast<const float*>(static_cast<const DLTensor*>(args[1])->data);
  auto* out = static_cast<float*>(static_cast<const DLTensor*>(args[2])->data);
  int64_t count = 1;
  for (int32_t i = 0; i < x->ndim; ++i) count *= x->shape[i];
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] OPERATOR b[i];
  return 0;
}
"""
_MUL_BACKWARD = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const float, 1> grad(args[0]), x(args[1]), y(args[2]);
  const bringup::View<float, 1> grad_x(args[3]), grad_y(args[4]);
  for (int64_t i = 0; i < grad.size(0); ++i) {
    grad_x(i) = grad(i) * y(i);
    grad_y(i) = grad(i) * x(i);
  }
  return 0;
}
"""


def _binary(signature: str, operator: str, **options: object) -> ops.KernelOperator:
    names = ("x", "y", "out") if "out" in signature else ("x", "y")
    return ops.kernel_op(
        f"bringup_benchmark::{signature}",
        source=jit.Source(text=_BINARY, name="binary.cpp"),
        macros={"OPERATOR": operator},
        checks=[
            ops.same_shape(*names),
            ops.same_dtype(*names),
            *(ops.dtype(name, torch.float32) for name in names[:1]),
        ],
        **options,
    )


def _with_custom_op(x: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
    @torch.library.custom_op("bringup_benchmark::custom_add", mutates_args=())
    def custom_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    return partial(custom_add, x, y)


def run(*, quick: bool = False) -> list[Row]:
    """The rows; ratios to torch.add and torch.mul on the same tensors."""
    rounds = 5 if quick else 61
    add = _binary("add(Tensor x, Tensor y) -> Tensor", "+", outputs=ops.empty_like("x"))
    add_out = _binary("add_out(Tensor x, Tensor y, *, Tensor(a!) out) -> Tensor(a!)", "+")
    mul = _binary("mul(Tensor x, Tensor y) -> Tensor", "*", outputs=ops.empty_like("x"))
    mul_backward = ops.kernel_op(
        "bringup_benchmark::mul_backward(Tensor grad, Tensor x, Tensor y) -> (Tensor, Tensor)",
        source=jit.Source(text=_MUL_BACKWARD, name="mul_backward.cpp"),
        outputs=(ops.empty_like("x"), ops.empty_like("y")),
        checks=[ops.same_shape("grad", "x", "y"), ops.same_dtype("grad", "x", "y")],
    )
    mul.register_backward(mul_backward.qualified_name, save=("x", "y"))

    x, y, out = torch.randn(16), torch.randn(16), torch.empty(16)
    gx, gy = x.clone().requires_grad_(), y.clone().requires_grad_()
    torch_add = partial(torch.add, x, y)
    return [
        compare(
            "op call, 2 tensors -> new tensor",
            partial(add, x, y),
            torch_add,
            peer_name="torch.add",
            budget=0.50,
            rounds=rounds,
        ),
        compare(
            "op call, out variant",
            lambda: add_out(x, y, out=out),
            lambda: torch.add(x, y),
            peer_name="torch.add",
            budget=0.16,
            rounds=rounds,
        ),
        compare(
            "op call recording autograd",
            partial(mul, gx, gy),
            partial(torch.mul, gx, gy),
            peer_name="torch.mul",
            budget=0.78,
            rounds=rounds,
        ),
        compare(
            "op call, torch.library.custom_op",
            partial(add, x, y),
            _with_custom_op(x, y),
            peer_name="custom_op",
            rounds=rounds,
        ),
        compare(
            "op call through torch.ops",
            partial(add.overload, x, y),
            torch_add,
            peer_name="torch.add",
            rounds=rounds,
        ),
    ]
