// Adding by indices. T: the values, I: the indices.
#include "rows.h"

namespace {

using namespace sim_ops;

int32_t out_of_range(const bringup_ctx* ctx) {
  return bringup::fail(ctx, "an index is out of range");
}

}  // namespace

// self, dim, index, src, out; in place without `out`, which is `self` then
BRINGUP_EXPORT int32_t scatter_add(void** args, int32_t n, const bringup_ctx* ctx) {
  const DLTensor& self = bringup::tensor(args[0]);
  const DLTensor& index = bringup::tensor(args[2]);
  const DLTensor& source = bringup::tensor(args[3]);
  const DLTensor& out = bringup::tensor(args[n > 4 ? 4 : 0]);
  const int64_t dim = wrapped(bringup::scalar<int64_t>(args[1]), self.ndim);
  if (out.data != self.data) {
    const bringup::View<const T> from(self);
    const bringup::View<T> to(out);
    for (int64_t i = 0; i < from.numel(); ++i) to.at(i) = from.at(i);
  }
  if (bringup::numel(index) == 0) return 0;
  for (int64_t r = 0; r < row_count(index, dim); ++r) {
    const T* from = elements<T>(args[3]) + row_start(index, source, dim, r);
    const I* at = elements<I>(args[2]) + row_start(index, index, dim, r);
    T* to = static_cast<T*>(out.data) + row_start(index, out, dim, r);
    for (int64_t i = 0; i < length(index, dim); ++i) {
      const int64_t number = at[i * step(index, dim)];
      if (number < 0 || number >= length(out, dim)) return out_of_range(ctx);
      to[number * step(out, dim)] += from[i * step(source, dim)];
    }
  }
  return 0;
}

// grad, indices, num_weights, padding_idx, scale_grad_by_freq, out. Both inputs lie in rows.
BRINGUP_EXPORT int32_t embedding_backward(void** args, int32_t, const bringup_ctx* ctx) {
  const DLTensor& out = bringup::tensor(args[5]);
  const I* indices = elements<I>(args[1]);
  const int64_t n = bringup::numel(bringup::tensor(args[1]));
  const int64_t weights = out.shape[0], width = out.shape[1];
  const int64_t padding = bringup::scalar<int64_t>(args[3]);
  const bool by_frequency = bringup::scalar<bool>(args[4]);
  if (bringup::numel(bringup::tensor(args[0])) != n * width) {
    return bringup::fail(ctx, "grad_output is not one row for each index");
  }
  const T* grad = elements<T>(args[0]);
  T* const sums = results<T>(args[5]);
  int64_t* const counts = bringup::workspace<int64_t>(ctx, by_frequency ? weights : 1);
  if (counts == nullptr) return bringup::fail(ctx, "no memory to count indices");
  for (int64_t i = 0; i < weights * width; ++i) sums[i] = 0;
  for (int64_t i = 0; by_frequency && i < weights; ++i) counts[i] = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (indices[i] == padding) continue;
    if (indices[i] < 0 || indices[i] >= weights) return out_of_range(ctx);
    if (by_frequency) ++counts[indices[i]];
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = indices[i];
    if (row == padding) continue;
    const T scale = by_frequency ? T(1) / static_cast<T>(counts[row]) : T(1);
    for (int64_t j = 0; j < width; ++j) sums[row * width + j] += grad[i * width + j] * scale;
  }
  return 0;
}
