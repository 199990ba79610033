// The device code of `bringup driver check`: built for a device that runs host code.
#include "bringup/kernel.h"

// out += x * factor over int32, each block its share of the elements. args: out, x, factor.
BRINGUP_EXPORT int32_t check_accumulate(void** args, int32_t n, const bringup_ctx* ctx) {
  if (n != 3) return 1;
  const auto* out = static_cast<const DLTensor*>(args[0]);
  const auto* x = static_cast<const DLTensor*>(args[1]);
  const int64_t factor = *static_cast<const int64_t*>(args[2]);
  auto* sums = static_cast<int32_t*>(out->data);
  const auto* values = static_cast<const int32_t*>(x->data);
  for (int64_t i = ctx->block_index; i < out->shape[0]; i += ctx->block_count) {
    sums[i] += values[i] * static_cast<int32_t>(factor);
  }
  return 0;
}

BRINGUP_EXPORT int32_t check_fail(void**, int32_t, const bringup_ctx* ctx) {
  ctx->set_error(ctx, "this kernel always fails");
  return 7;
}
