// Reading by indices. T: the values, I: the indices.
#include <cstdio>

#include "rows.h"

namespace {

using namespace sim_ops;

int32_t out_of_range(const bringup_ctx* ctx, int64_t index, int64_t dim, int64_t size) {
  char words[100];
  std::snprintf(words, sizeof words, "index %lld is outside dimension %lld of size %lld",
                static_cast<long long>(index), static_cast<long long>(dim),
                static_cast<long long>(size));
  return bringup::fail(ctx, words);
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
  if (index.ndim > 1) return bringup::fail(ctx, "the index is no vector");  // Meta lets it by
  const int64_t index_stride = index.ndim > 0 ? index.strides[0] : 0;
  for (int64_t i = 0; i < n; ++i) {
    if (indices[i * index_stride] < 0 || indices[i * index_stride] >= size) {
      return out_of_range(ctx, indices[i * index_stride], dim, size);
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

// self, indices (of each dimension a tensor or NULL, alike in shape), out. The dimensions of the
// indices stand where the first one is, and before all others where one without lies between them.
BRINGUP_EXPORT int32_t index_elements(void** args, int32_t, const bringup_ctx* ctx) {
  const DLTensor& self = bringup::tensor(args[0]);
  const DLTensor& out = bringup::tensor(args[2]);
  const auto& list = *static_cast<const bringup_list*>(args[1]);
  const auto* indices = static_cast<const DLTensor* const*>(list.data);
  int64_t arrays = 0, first = -1, last = -1;
  for (int64_t k = 0; k < list.size; ++k) {
    if (indices[k] == nullptr) continue;
    if (arrays++ == 0) first = k;
    last = k;
  }
  const int64_t begin = last - first + 1 == arrays ? first : 0;
  const int64_t end = begin + out.ndim - (self.ndim - arrays);
  for (int64_t n = 0; n < bringup::numel(out); ++n) {
    int64_t rest = n, from = 0, inner = 0, scale = 1, k = self.ndim;
    for (int64_t j = out.ndim - 1; j >= 0; --j) {
      const int64_t here = rest % out.shape[j];
      rest /= out.shape[j];
      if (begin <= j && j < end) {
        inner += here * scale;
        scale *= out.shape[j];
        continue;
      }
      for (--k; k < list.size && indices[k] != nullptr;) --k;
      from += here * self.strides[k];
    }
    for (k = first; k <= last; ++k) {
      if (indices[k] == nullptr) continue;
      const int64_t given = elements<I>(indices[k])[place(*indices[k], inner)];
      const int64_t chosen = given < 0 ? given + self.shape[k] : given;
      if (chosen < 0 || chosen >= self.shape[k]) return out_of_range(ctx, given, k, self.shape[k]);
      from += chosen * self.strides[k];
    }
    results<T>(args[2])[place(out, n)] = elements<T>(args[0])[from];
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
      if (number < 0 || number >= length(self, dim)) {
        return out_of_range(ctx, number, dim, length(self, dim));
      }
      to[i * step(out, dim)] = from[number * step(self, dim)];
    }
  }
  return 0;
}
