// Reading by indices. T: the values, I: the indices.
#include "rows.h"

namespace {

using namespace sim_ops;

int32_t out_of_range(const bringup_ctx* ctx) {
  return bringup::fail(ctx, "an index is out of range");
}

}  // namespace

// self, dim, index, out
BRINGUP_EXPORT int32_t index_select(void** args, int32_t, const bringup_ctx* ctx) {
  const DLTensor& self = bringup::tensor(args[0]);
  const DLTensor& index = bringup::tensor(args[2]);
  const DLTensor& out = bringup::tensor(args[3]);
  const int64_t dim = wrapped(bringup::scalar<int64_t>(args[1]), self.ndim);
  const I* indices = elements<I>(args[2]);
  const int64_t n = bringup::numel(index), size = length(self, dim);
  const int64_t index_stride = index.ndim > 0 ? index.strides[0] : 0;
  for (int64_t i = 0; i < n; ++i) {
    if (indices[i * index_stride] < 0 || indices[i * index_stride] >= size) {
      return out_of_range(ctx);
    }
  }
  for (int64_t r = 0; r < row_count(self, dim); ++r) {
    const T* from = elements<T>(args[0]) + row_start(self, self, dim, r);
    T* to = results<T>(args[3]) + row_start(self, out, dim, r);
    for (int64_t i = 0; i < n; ++i) {
      to[i * step(out, dim)] = from[indices[i * index_stride] * step(self, dim)];
    }
  }
  return 0;
}

// self, dim, index, sparse_grad, out
BRINGUP_EXPORT int32_t gather(void** args, int32_t, const bringup_ctx* ctx) {
  const DLTensor& self = bringup::tensor(args[0]);
  const DLTensor& index = bringup::tensor(args[2]);
  const DLTensor& out = bringup::tensor(args[4]);
  const int64_t dim = wrapped(bringup::scalar<int64_t>(args[1]), self.ndim);
  if (bringup::numel(index) == 0) return 0;
  for (int64_t r = 0; r < row_count(index, dim); ++r) {
    const T* from = elements<T>(args[0]) + row_start(index, self, dim, r);
    const I* at = elements<I>(args[2]) + row_start(index, index, dim, r);
    T* to = results<T>(args[4]) + row_start(index, out, dim, r);
    for (int64_t i = 0; i < length(index, dim); ++i) {
      const int64_t number = at[i * step(index, dim)];
      if (number < 0 || number >= length(self, dim)) return out_of_range(ctx);
      to[i * step(out, dim)] = from[number * step(self, dim)];
    }
  }
  return 0;
}
