"""CUDA, compile-only: a kernel file with our entry point and a `<<<>>>` launch builds with nvcc."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from bringup import _native

SOURCE = r"""
#include <bringup/kernel.h>

__global__ void scale(const float* x, float* out, float factor, int64_t n) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = factor * x[i];
}

BRINGUP_EXPORT int32_t run(void** args, int32_t n, const bringup_ctx* ctx) {
  if (n != 3) return 1;
  const auto* x = static_cast<DLTensor*>(args[0]);
  auto* out = static_cast<DLTensor*>(args[2]);
  const auto factor = static_cast<float>(*static_cast<double*>(args[1]));
  const int64_t count = x->shape[0];
  scale<<<(count + 255) / 256, 256, 0, static_cast<cudaStream_t>(ctx->stream)>>>(
      static_cast<const float*>(x->data), static_cast<float*>(out->data), factor, count);
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) ctx->set_error(ctx, cudaGetErrorString(status));
  return static_cast<int32_t>(status);
}
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
def test_cuda_kernel_file_with_our_header_builds_and_exports_its_entry(tmp_path: Path) -> None:
    source = tmp_path / "scale.cu"
    source.write_text(SOURCE)
    library = tmp_path / "scale.so"
    options = ["-std=c++17", "-arch=sm_90", "-shared", "-Xcompiler=-fPIC", "-Werror=all-warnings"]
    subprocess.run(
        ["nvcc", *options, f"-I{_native.include_dir()}", str(source), "-o", str(library)],
        check=True,
        capture_output=True,
    )
    assert ctypes.CDLL(str(library)).run is not None
