// Rows of layer norm and RMS norm, with or without a residual added first; for float and double.
#pragma once

#include "bringup/kernel.h"
#include "vec.h"

namespace bringup_kernels {

// total = x + residual, one row; returns the sum of its elements.
template <class T>
T add_row(const T* x, const T* residual, T* total, int64_t width) {
  constexpr int64_t kStep = kLanes<T>;
  const int64_t whole = width - width % kStep;
  Vec<T> sums{};
  for (int64_t i = 0; i < whole; i += kStep) {
    const Vec<T> value = load(x + i) + load(residual + i);
    store(total + i, value);
    sums += value;
  }
  T all = sum<T>(sums);
  for (int64_t i = whole; i < width; ++i) all += total[i] = x[i] + residual[i];
  return all;
}

// The sum of (x - centre)^2 over a row.
template <class T>
T squares_of_row(const T* x, T centre, int64_t width) {
  constexpr int64_t kStep = kLanes<T>;
  const int64_t whole = width - width % kStep;
  Vec<T> squares{};
  for (int64_t i = 0; i < whole; i += kStep) {
    const Vec<T> centred = load(x + i) - centre;
    squares += centred * centred;
  }
  T all = sum<T>(squares);
  for (int64_t i = whole; i < width; ++i) all += (x[i] - centre) * (x[i] - centre);
  return all;
}

// LayerNorm of x + residual over one row (Ba, Kiros, Hinton: Layer Normalization, 2016; the biased
// variance, as torch). Mean and variance in two passes while the row is in cache. `total` gets the
// sum and may be `out`.
template <class T>
struct LayerNorm {
  const T* weight;
  const T* bias;
  T eps;

  void operator()(const T* x, const T* residual, T* total, T* out, int64_t width) const {
    constexpr int64_t kStep = kLanes<T>;
    const int64_t whole = width - width % kStep;
    const T mean = add_row(x, residual, total, width) / static_cast<T>(width);
    const T spread = squares_of_row(total, mean, width) / static_cast<T>(width);
    const T scale = 1 / static_cast<T>(__builtin_sqrt(spread + eps));
    for (int64_t i = 0; i < whole; i += kStep) {
      store(out + i, (load(total + i) - mean) * scale * load(weight + i) + load(bias + i));
    }
    for (int64_t i = whole; i < width; ++i) {
      out[i] = (total[i] - mean) * scale * weight[i] + bias[i];
    }
  }
};

// RMSNorm of one row (Zhang, Sennrich: Root Mean Square Layer Normalization, 2019); without a
// weight where that is null.
template <class T>
struct RmsNorm {
  const T* weight;
  T eps;

  void operator()(const T* x, T* out, int64_t width) const {
    constexpr int64_t kStep = kLanes<T>;
    const int64_t whole = width - width % kStep;
    const T mean = squares_of_row(x, T(0), width) / static_cast<T>(width);
    const T scale = 1 / static_cast<T>(__builtin_sqrt(mean + eps));
    for (int64_t i = 0; i < whole; i += kStep) {
      const Vec<T> scaled = load(x + i) * scale;
      store(out + i, weight != nullptr ? scaled * load(weight + i) : scaled);
    }
    for (int64_t i = whole; i < width; ++i) {
      out[i] = x[i] * scale * (weight != nullptr ? weight[i] : T(1));
    }
  }
};

// How many rows are worth a thread.
inline int64_t rows_per_thread(int64_t width) { return 1 + 16384 / width; }

// The elements of a tensor argument; null for None.
template <class T>
T* data_of(void* argument) {
  return argument == nullptr ? nullptr : static_cast<T*>(bringup::tensor(argument).data);
}

// The argument eps: a number, or a tensor of one where the kernel is compiled so.
template <class T>
T eps_of(void* argument) {
#ifdef EPS_IS_TENSOR
  return *data_of<T>(argument);
#else
  return bringup::scalar<T>(argument);
#endif
}

// Calls `each(at, width)` for every row of the contiguous tensor `x`, on the context's threads: the
// row is the `width` elements from number `at` on. Fails where there is no last dimension, or an
// empty one.
template <class Row>
int32_t for_each_row(const bringup_ctx* ctx, void* x, const Row& each) {
  const DLTensor& tensor = bringup::tensor(x);
  const int64_t width = tensor.ndim == 0 ? 0 : tensor.shape[tensor.ndim - 1];
  if (width == 0) return bringup::fail(ctx, "x needs a last dimension of at least 1");
  int64_t rows = 1;
  for (int32_t i = 0; i + 1 < tensor.ndim; ++i) rows *= tensor.shape[i];
  bringup::parallel_for(ctx, rows, rows_per_thread(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) each(row * width, width);
  });
  return 0;
}

// LayerNorm of x + residual over every row; `args` are x, residual, weight, bias and eps.
template <class T>
int32_t add_layer_norm(void** args, const bringup_ctx* ctx, T* total, T* out) {
  const T *x = data_of<T>(args[0]), *residual = data_of<T>(args[1]);
  const LayerNorm<T> normalize{data_of<T>(args[2]), data_of<T>(args[3]),
                               bringup::scalar<T>(args[4])};
  return for_each_row(ctx, args[0], [=](int64_t at, int64_t width) {
    normalize(x + at, residual + at, total + at, out + at, width);
  });
}

}  // namespace bringup_kernels
