"""Graphs capture forward runs: a test here runs without gradients unless it switches them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from bringup import jit, ops
from bringup.graphs import _handlers

AFFINE = """
#include "bringup/kernel.h"
// x * scale + shift + the sums of both lists, negated if asked for
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const auto* x = static_cast<DLTensor*>(args[0]);
  const int64_t shift = *static_cast<int64_t*>(args[1]);
  const double scale = *static_cast<double*>(args[2]);
  const int64_t negate = *static_cast<int64_t*>(args[3]);
  const auto* lengths = static_cast<bringup_list*>(args[4]);
  const auto* extra = static_cast<bringup_list*>(args[5]);
  auto* out = static_cast<float*>(static_cast<DLTensor*>(args[6])->data);
  if (shift == 98) throw 98;
  if (shift == 99) { ctx->set_error(ctx, "99 is too far"); return 1; }
  double sum = shift;
  for (int64_t i = 0; i < lengths->size; ++i) sum += static_cast<const int64_t*>(lengths->data)[i];
  for (int64_t i = 0; i < extra->size; ++i) sum += static_cast<const double*>(extra->data)[i];
  int64_t n = 1;
  for (int32_t i = 0; i < x->ndim; ++i) n *= x->shape[i];
  for (int64_t i = 0; i < n; ++i) {
    out[i] = (negate ? -1 : 1) * (static_cast<const float*>(x->data)[i] * scale + sum);
  }
  return 0;
}
"""
FILL = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const auto* out = static_cast<DLTensor*>(args[2]);
  const int64_t n = *static_cast<int64_t*>(args[1]);
  for (int64_t i = 0; i < out->shape[0]; ++i) static_cast<float*>(out->data)[i] = n;
  return 0;
}
"""

Affine = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def handlers() -> Iterator[None]:
    """Handlers that a test registers are gone after it."""
    with _handlers.handlers_of_block():
        yield


def _operator(signature: str, text: str, **options: Any) -> Iterator[ops.KernelOperator]:
    source = jit.Source(text=text, name="kernel.cpp")
    operator = ops.kernel_op(f"graphs_test::{signature}", source=source, **options)
    yield operator
    operator.undefine()


@pytest.fixture(scope="session")
def affine(kernel_cache: object) -> Iterator[ops.KernelOperator]:
    """`affine(x, shift=0, scale=1.0, negate=False, lengths=[], extra=[])`, a float32 kernel."""
    yield from _operator(
        "affine(Tensor x, int shift=0, float scale=1.0, bool negate=False, int[] lengths=[],"
        " float[] extra=[]) -> Tensor",
        AFFINE,
        outputs=ops.empty_like("x"),
    )


@pytest.fixture(scope="session")
def fill(kernel_cache: object) -> Iterator[ops.KernelOperator]:
    """`fill(x, n)`: n times n; its result's shape depends on an int argument."""
    yield from _operator("fill(Tensor x, int n) -> Tensor", FILL, outputs=ops.empty("n", dtype="x"))
