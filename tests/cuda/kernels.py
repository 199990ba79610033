"""The .cu files of these tests. Each launches for itself on the stream of its context."""

from __future__ import annotations

SCALE = """
#include "bringup/cuda.h"
__global__ void scale(const ELEMENT* x, ELEMENT* out, float factor, int64_t n) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    out[i] = static_cast<ELEMENT>(static_cast<float>(x[i]) * factor);
  }
}
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const auto* x = static_cast<const DLTensor*>(args[0]);
  const auto* out = static_cast<const DLTensor*>(args[2]);
  int64_t n = 1;
  for (int32_t i = 0; i < x->ndim; ++i) n *= x->shape[i];
  if (n == 0) return 0;
  const auto blocks = static_cast<uint32_t>((n + 255) / 256 < 4096 ? (n + 255) / 256 : 4096);
  scale<<<blocks, 256, 0, bringup::cuda_stream(ctx)>>>(
      static_cast<const ELEMENT*>(x->data), static_cast<ELEMENT*>(out->data),
      static_cast<float>(*static_cast<const double*>(args[1])), n);
  return bringup::cuda_status(ctx);
}
"""

# Reads a column-strided matrix as it lies.
ROW_SUMS = """
#include "bringup/cuda.h"
__global__ void row_sums(const float* x, int64_t row, int64_t column, float* out, int64_t rows,
                         int64_t columns) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= rows) return;
  float sum = 0;
  for (int64_t j = 0; j < columns; ++j) sum += x[i * row + j * column];
  out[i] = sum;
}
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<const float, 2> x(args[0]);
  const bringup::View<float, 1> out(args[1]);
  row_sums<<<static_cast<uint32_t>((x.size(0) + 255) / 256), 256, 0, bringup::cuda_stream(ctx)>>>(
      x.data(), x.stride(0), x.stride(1), out.data(), x.size(0), x.size(1));
  return bringup::cuda_status(ctx);
}
"""

# Adds in place, after about `cycles` cycles of the GPU's clock.
SLOW_ADD = """
#include "bringup/cuda.h"
__global__ void slow_add(float* x, float value, int64_t n, int64_t cycles) {
  const int64_t begin = clock64();
  while (clock64() - begin < cycles) {
  }
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) x[i] += value;
}
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<float, 1> x(args[0]);
  slow_add<<<32, 256, 0, bringup::cuda_stream(ctx)>>>(
      x.data(), static_cast<float>(*static_cast<const double*>(args[1])), x.size(0),
      *static_cast<const int64_t*>(args[2]));
  return bringup::cuda_status(ctx);
}
"""

# Squares into scratch memory, and copies that to the output.
THROUGH_WORKSPACE = """
#include "bringup/cuda.h"
__global__ void square(const float* x, float* scratch, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) scratch[i] = x[i] * x[i];
}
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<const float, 1> x(args[0]);
  const bringup::View<float, 1> out(args[1]);
  const size_t bytes = static_cast<size_t>(x.size(0)) * sizeof(float);
  auto* scratch = static_cast<float*>(ctx->workspace(ctx, bytes));
  if (scratch == nullptr) {
    ctx->set_error(ctx, "no scratch memory");
    return 1;
  }
  const cudaStream_t stream = bringup::cuda_stream(ctx);
  square<<<static_cast<uint32_t>((x.size(0) + 255) / 256), 256, 0, stream>>>(x.data(), scratch,
                                                                             x.size(0));
  const auto error =
      cudaMemcpyAsync(out.data(), scratch, bytes, cudaMemcpyDeviceToDevice, stream);
  return error == cudaSuccess ? bringup::cuda_status(ctx) : bringup::cuda_status(ctx, error);
}
"""

# Tells what the kernel was given, in a tensor on the GPU.
CONTEXT = """
#include "bringup/cuda.h"
__global__ void tell(int64_t* out, int64_t device_type, int64_t device, int64_t stream) {
  out[0] = device_type;
  out[1] = device;
  out[2] = stream;
}
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<int64_t, 1> out(args[0]);
  tell<<<1, 1, 0, bringup::cuda_stream(ctx)>>>(out.data(), ctx->device.device_type,
                                               ctx->device.device_id,
                                               reinterpret_cast<int64_t>(ctx->stream));
  return bringup::cuda_status(ctx);
}
"""

# A launch that CUDA refuses, and a write to an address that is nobody's.
TOO_MANY_THREADS = """
#include "bringup/cuda.h"
__global__ void nothing() {}
BRINGUP_EXPORT int32_t run(void**, int32_t, const bringup_ctx* ctx) {
  nothing<<<1, 4096, 0, bringup::cuda_stream(ctx)>>>();
  return bringup::cuda_status(ctx);
}
"""
WILD_WRITE = """
#include "bringup/cuda.h"
__global__ void wild(float* x) { x[threadIdx.x] = 1; }
BRINGUP_EXPORT int32_t run(void**, int32_t, const bringup_ctx* ctx) {
  wild<<<1, 32, 0, bringup::cuda_stream(ctx)>>>(reinterpret_cast<float*>(uintptr_t{16}));
  return bringup::cuda_status(ctx);
}
"""

# A whole function of a library's form: no kernel.h, only a pointer, a count and a stream.
PLAIN_FUNCTION = """
#include <cuda_runtime_api.h>
__global__ void twice(float* out, const float* x, long n) {
  const long i = long(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 2 * x[i];
}
extern "C" int twice_of(float* out, const float* x, long n, cudaStream_t stream) {
  twice<<<unsigned((n + 255) / 256), 256, 0, stream>>>(out, x, n);
  return int(cudaGetLastError());
}
"""

# Device code for NVRTC.
AXPY = """
#include "value.h"
extern "C" __global__ void axpy(float* y, const float* x, float a, long long n) {
  const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (i < n) y[i] += a * x[i] + VALUE;
}
"""
