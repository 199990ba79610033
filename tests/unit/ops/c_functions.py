"""A function as it is, and how the tests of this folder call it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from bringup import ops

Build = Callable[..., Path]  # `build(text)`: a library of plain C, in conftest.py

RMS = """
#include <math.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C"
#endif
int rms(float* out, const float* x, const float* w, int64_t rows, int64_t n, float eps,
        void* stream) {
  (void)stream;
  if (n == 13) return 7;
  for (int64_t r = 0; r < rows; ++r) {
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += x[r * n + i] * x[r * n + i];
    const float k = 1 / sqrtf(sum / n + eps);
    for (int64_t i = 0; i < n; ++i) out[r * n + i] = x[r * n + i] * k * w[i];
  }
  return 0;
}
"""
SIGNATURE = "rms(Tensor x, Tensor w, float eps=1e-6) -> Tensor"
CONTRACT = {"outputs": ops.empty_like("x"), "checks": ops.shape("w", "x.shape[1]"), "entry": "rms"}
ARGS = "ptr(out), ptr(x), ptr(w), size(x,0), size(x,1), eps, stream"
LIBRARY_ARGS = (
    "ptr(out, float32), ptr(x, float32), ptr(w, float32), size(x,0), size(x,1), f32(eps), stream"
)


def expected(x: torch.Tensor, w: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * w
