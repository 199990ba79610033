// Rows of layer norm and RMS norm, with or without a residual added first. Elements are read and
// written as Element and computed with as T.
#pragma once

#include "bringup/kernel.h"
#include "gemm/elements.h"

namespace bringup_kernels {

// total = x + residual, one row; returns the sum of its elements, which are rounded as stored.
template <class T, class Element>
T add_row(const Element* x, const Element* residual, Element* total, int64_t width) {
  constexpr int64_t kStep = kLanes<T>;
  const int64_t whole = width - width % kStep;
  Vec<T> sums{};
  for (int64_t i = 0; i < whole; i += kStep) {
    const Vec<T> value = Rounded<Element>::of(load_as<T>(x + i) + load_as<T>(residual + i));
    store_as(total + i, value);
    sums += value;
  }
  T all = sum<T>(sums);
  for (int64_t i = whole; i < width; ++i) {
    total[i] = static_cast<Element>(static_cast<T>(x[i]) + static_cast<T>(residual[i]));
    all += static_cast<T>(total[i]);
  }
  return all;
}

// The sum of (x - centre)^2 over a row.
template <class T, class Element>
T squares_of_row(const Element* x, T centre, int64_t width) {
  constexpr int64_t kStep = kLanes<T>;
  const int64_t whole = width - width % kStep;
  Vec<T> squares{};
  for (int64_t i = 0; i < whole; i += kStep) {
    const Vec<T> centred = load_as<T>(x + i) - centre;
    squares = multiply_add(centred, centred, squares);
  }
  T all = sum<T>(squares);
  for (int64_t i = whole; i < width; ++i) {
    const T centred = static_cast<T>(x[i]) - centre;
    all += centred * centred;
  }
  return all;
}

// LayerNorm of x + residual over one row (Ba, Kiros, Hinton: Layer Normalization, 2016; the biased
// variance, as torch). Mean and variance in two passes while the row is in cache. `total` gets the
// sum and may be `out`.
template <class T, class Element>
struct LayerNorm {
  const Element* weight;
  const Element* bias;
  T eps;

  void operator()(const Element* x, const Element* residual, Element* total, Element* out,
                  int64_t width) const {
    constexpr int64_t kStep = kLanes<T>;
    const int64_t whole = width - width % kStep;
    const T mean = add_row<T>(x, residual, total, width) / static_cast<T>(width);
    const T spread = squares_of_row(total, mean, width) / static_cast<T>(width);
    const T scale = 1 / static_cast<T>(__builtin_sqrt(spread + eps));
    for (int64_t i = 0; i < whole; i += kStep) {
      const Vec<T> scaled = (load_as<T>(total + i) - mean) * scale;
      store_as(out + i, multiply_add(scaled, load_as<T>(weight + i), load_as<T>(bias + i)));
    }
    for (int64_t i = whole; i < width; ++i) {
      const T scaled = (static_cast<T>(total[i]) - mean) * scale;
      out[i] = static_cast<Element>(scaled * static_cast<T>(weight[i]) + static_cast<T>(bias[i]));
    }
  }
};

// RMSNorm of one row (Zhang, Sennrich: Root Mean Square Layer Normalization, 2019); without a
// weight where that is null. In 16 bits the row is rounded before it is multiplied by the weight,
// as models do that compute it in float32.
template <class T, class Element>
struct RmsNorm {
  const Element* weight;
  T eps;

  void operator()(const Element* x, Element* out, int64_t width) const {
    constexpr int64_t kStep = kLanes<T>;
    const int64_t whole = width - width % kStep;
    const T mean = squares_of_row(x, T(0), width) / static_cast<T>(width);
    const T scale = 1 / static_cast<T>(__builtin_sqrt(mean + eps));
    for (int64_t i = 0; i < whole; i += kStep) {
      const Vec<T> scaled = load_as<T>(x + i) * scale;
      store_as(out + i,
               weight == nullptr ? scaled : Rounded<Element>::of(scaled) * load_as<T>(weight + i));
    }
    for (int64_t i = whole; i < width; ++i) {
      const Element scaled = static_cast<Element>(static_cast<T>(x[i]) * scale);
      out[i] = weight == nullptr
                   ? scaled
                   : static_cast<Element>(static_cast<T>(scaled) * static_cast<T>(weight[i]));
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

// The argument eps: a number, or a tensor of one element of type EPS where that is defined.
template <class T>
T eps_of(void* argument) {
#ifdef EPS
  return static_cast<T>(*data_of<EPS>(argument));
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
template <class Element>
int32_t add_layer_norm(void** args, const bringup_ctx* ctx, Element* total, Element* out) {
  using T = typename ComputedAs<Element>::type;
  const Element *x = data_of<Element>(args[0]), *residual = data_of<Element>(args[1]);
  const LayerNorm<T, Element> normalize{data_of<Element>(args[2]), data_of<Element>(args[3]),
                                        bringup::scalar<T>(args[4])};
  return for_each_row(ctx, args[0], [=](int64_t at, int64_t width) {
    normalize(x + at, residual + at, total + at, out + at, width);
  });
}

}  // namespace bringup_kernels
