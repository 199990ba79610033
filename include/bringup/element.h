// What the generated entries of pointwise kernels and reductions are made of (devices.kernel). A
// kernel file includes bringup/kernel.h at most, never this.
#ifndef BRINGUP_ELEMENT_H_
#define BRINGUP_ELEMENT_H_

#include "bringup/kernel.h"

extern "C++" {
namespace bringup {
namespace element {

constexpr int32_t kMaxRank = 64;

struct Range {
  int64_t begin;
  int64_t end;
};

// This block's part of [0, n).
inline Range block_range(const bringup_ctx* ctx, int64_t n) {
  const int64_t count = ctx->block_count > 0 ? ctx->block_count : 1;
  const int64_t each = n / count;
  const int64_t rest = n % count;
  const int64_t i = ctx->block_index;
  const int64_t begin = i * each + (i < rest ? i : rest);
  return {begin, begin + each + (i < rest ? 1 : 0)};
}

// Walks the elements numbered [range.begin, range.end) of tensors of one shape in row-major order,
// in pieces of the innermost dimension: row(offsets, n) with each tensor's offset in elements.
template <int Tensors, class Row>
void for_each_row(const DLTensor* const (&tensors)[Tensors], Range range, const Row& row) {
  const int32_t rank = tensors[0]->ndim;
  int64_t offsets[Tensors] = {};
  if (rank == 0) {
    if (range.begin < range.end) row(offsets, int64_t{1});
    return;
  }
  const int64_t* shape = tensors[0]->shape;
  int64_t index[kMaxRank];
  int64_t number = range.begin;
  for (int32_t d = rank - 1; d >= 0; --d) {
    index[d] = number % shape[d];
    number /= shape[d];
    for (int t = 0; t < Tensors; ++t) offsets[t] += index[d] * tensors[t]->strides[d];
  }
  const int32_t last = rank - 1;
  for (int64_t at = range.begin; at < range.end;) {
    const int64_t left = shape[last] - index[last];
    const int64_t n = left < range.end - at ? left : range.end - at;
    row(offsets, n);
    at += n;
    index[last] += n;
    for (int t = 0; t < Tensors; ++t) offsets[t] += n * tensors[t]->strides[last];
    for (int32_t d = last; d > 0 && index[d] == shape[d]; --d) {
      index[d] = 0;
      ++index[d - 1];
      for (int t = 0; t < Tensors; ++t) {
        offsets[t] += tensors[t]->strides[d - 1] - shape[d] * tensors[t]->strides[d];
      }
    }
  }
}

// Whether all tensors lie densely along the innermost dimension.
template <int Tensors>
bool has_unit_strides(const DLTensor* const (&tensors)[Tensors]) {
  for (int t = 0; t < Tensors; ++t) {
    if (tensors[t]->ndim > 0 && tensors[t]->strides[tensors[t]->ndim - 1] != 1) return false;
  }
  return true;
}

inline int64_t inner_stride(const DLTensor& t) { return t.ndim > 0 ? t.strides[t.ndim - 1] : 0; }

// A number of the host, which the call has as it was given: an integer or a double.
template <class T, bool IsFloat>
T number(const void* arg) {
  if constexpr (IsFloat) return static_cast<T>(*static_cast<const double*>(arg));
  return static_cast<T>(*static_cast<const int64_t*>(arg));
}

// The dimensions [begin, end) of a tensor.
inline DLTensor dimensions(const DLTensor& t, int32_t begin, int32_t end) {
  DLTensor part = t;
  part.ndim = end - begin;
  part.shape = t.shape + begin;
  part.strides = t.strides + begin;
  return part;
}

// For each result of this block: result(offset of its input, offsets of the results).
template <int Results, class Result>
void for_each_result(const bringup_ctx* ctx, const DLTensor& input, int32_t kept,
                     const DLTensor* const (&results)[Results], const Result& result) {
  const DLTensor outer = dimensions(input, 0, kept);
  const DLTensor* all[Results + 1] = {&outer};
  for (int r = 0; r < Results; ++r) all[r + 1] = results[r];
  for_each_row(all, block_range(ctx, numel(outer)), [&](const int64_t* offsets, int64_t n) {
    int64_t at[Results + 1];
    for (int t = 0; t <= Results; ++t) at[t] = offsets[t];
    for (int64_t i = 0; i < n; ++i) {
      result(at[0], at + 1);
      for (int t = 0; t <= Results; ++t) at[t] += inner_stride(*all[t]);
    }
  });
}

// Gives the elements that one result is made of to `state`, with their numbers.
template <class T, class Element, class State>
int64_t feed(State& state, const Element* data, const DLTensor& input, int32_t kept) {
  const DLTensor inner = dimensions(input, kept, input.ndim);
  const DLTensor* all[1] = {&inner};
  const int64_t stride = inner_stride(inner);
  int64_t number = 0;
  for_each_row(all, {0, numel(inner)}, [&](const int64_t* offsets, int64_t n) {
    const Element* row = data + offsets[0];
    if (stride == 1) {
      for (int64_t i = 0; i < n; ++i) state.add(static_cast<T>(row[i]), number++);
    } else {
      for (int64_t i = 0; i < n; ++i) state.add(static_cast<T>(row[i * stride]), number++);
    }
  });
  return number;
}

}  // namespace element
}  // namespace bringup
}  // extern "C++"

#endif  // BRINGUP_ELEMENT_H_
