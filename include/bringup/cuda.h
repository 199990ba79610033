/* What a .cu file may include instead of kernel.h: the stream of a call, and the CUDA error of a
 * launch as the kernel's own words. Needs the CUDA toolkit's headers; no torch, no Python.
 *
 *     __global__ void twice(float* x, int64_t n) { ... }
 *
 *     BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
 *       const bringup::View<float, 1> x(args[0]);
 *       twice<<<(x.size(0) + 255) / 256, 256, 0, bringup::cuda_stream(ctx)>>>(x.data(), x.size(0));
 *       return bringup::cuda_status(ctx);
 *     }
 */
#ifndef BRINGUP_CUDA_H_
#define BRINGUP_CUDA_H_

#include <cuda_runtime_api.h>

#include "bringup/kernel.h"

#ifdef __cplusplus
extern "C++" {
namespace bringup {

/* The stream that the call has to launch on. */
inline cudaStream_t cuda_stream(const bringup_ctx* ctx) {
  return static_cast<cudaStream_t>(ctx->stream);
}

/* What `run` returns: 0, or 1 with CUDA's text when the last launch or another call failed.
 * `error` is what a call returned; without it the error of the launches since the last look. */
inline int32_t cuda_status(const bringup_ctx* ctx, cudaError_t error = cudaGetLastError()) {
  if (error == cudaSuccess) return 0;
  ctx->set_error(ctx, cudaGetErrorString(error));
  return 1;
}

}  // namespace bringup
}  // extern "C++"
#endif

#endif /* BRINGUP_CUDA_H_ */
