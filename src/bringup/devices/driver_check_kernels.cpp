// The device code of `bringup driver check`: built for a device that runs host code.
#include "bringup/device.h"

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

// out += x * factor + single * number over int32, each of the grid's `threads` its share of the
// elements.
BRINGUP_EXPORT void check_values(const bringup_position* at, int32_t* out, const int32_t* x,
                                 int64_t count, int64_t threads, int32_t factor, float single,
                                 double number) {
  const bringup_index &block = at->block_idx, &thread = at->thread_idx;
  const bringup_index &grid = at->grid_dim, &dim = at->block_dim;
  const int64_t of_block = (int64_t{block.z} * grid.y + block.y) * grid.x + block.x;
  const int64_t of_thread = (int64_t{thread.z} * dim.y + thread.y) * dim.x + thread.x;
  const int64_t first = of_block * (int64_t{dim.x} * dim.y * dim.z) + of_thread;
  const auto more = static_cast<int32_t>(static_cast<double>(single) * number);
  for (int64_t i = first; i < count; i += threads) {
    out[i] += x[i] * factor + more;
  }
}

// The first thread of a block writes the sum of what all of them have left in its shared memory.
BRINGUP_EXPORT void check_shared(const bringup_position* at, int32_t* out) {
  auto* shared = static_cast<int32_t*>(at->shared);
  shared[at->thread_idx.x] = static_cast<int32_t>(at->thread_idx.x + at->block_idx.x);
  at->barrier(at);
  if (at->thread_idx.x != 0) return;
  int32_t sum = 0;
  for (uint32_t i = 0; i < at->block_dim.x; ++i) sum += shared[i];
  out[at->block_idx.x] = sum;
}
