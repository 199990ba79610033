// Rows of layer norm and RMS norm, with or without a residual added first; for float and double.
#pragma once

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
  int64_t width;
  T eps;

  void operator()(const T* x, const T* residual, T* total, T* out) const {
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
  int64_t width;
  T eps;

  void operator()(const T* x, T* out) const {
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

}  // namespace bringup_kernels
