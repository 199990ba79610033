// Softmax and its logarithm along one dimension, and their gradients. ENTRY chooses.
#include "rows.h"

namespace {

using namespace sim_ops;

// --- forward: self, dim, half_to_float, out

template <bool Log>
int32_t forward(void** args) {
  const DLTensor& self = bringup::tensor(args[0]);
  const DLTensor& out = bringup::tensor(args[3]);
  const int64_t dim = wrapped(bringup::scalar<int64_t>(args[1]), self.ndim);
  const int64_t n = length(self, dim);
  if (bringup::numel(self) == 0) return 0;
  for (int64_t r = 0; r < row_count(self, dim); ++r) {
    const T* x = elements<T>(args[0]) + row_start(self, self, dim, r);
    T* y = results<T>(args[3]) + row_start(self, out, dim, r);
    const int64_t from = step(self, dim), to = step(out, dim);
    T largest = x[0];
    for (int64_t i = 1; i < n; ++i) largest = x[i * from] > largest ? x[i * from] : largest;
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      const T e = std::exp(x[i * from] - largest);
      if (!Log) y[i * to] = e;
      sum += e;
    }
    if (Log) {
      const T shift = static_cast<T>(std::log(sum));
      for (int64_t i = 0; i < n; ++i) y[i * to] = x[i * from] - largest - shift;
    } else {
      const T scale = static_cast<T>(1 / sum);
      for (int64_t i = 0; i < n; ++i) y[i * to] *= scale;
    }
  }
  return 0;
}

// --- backward: grad_output, output, dim, input_dtype, out

template <bool Log>
int32_t backward(void** args, const bringup_ctx* ctx) {
  const DLTensor& grad = bringup::tensor(args[0]);
  const DLTensor& output = bringup::tensor(args[1]);
  const DLTensor& out = bringup::tensor(args[4]);
  const int64_t dim = wrapped(bringup::scalar<int64_t>(args[2]), grad.ndim);
  if (!alike(grad, output) || !alike(grad, out))
    return bringup::fail(ctx, "grad_output has another shape than the output");
  if (bringup::numel(grad) == 0) return 0;
  const int64_t n = length(grad, dim);
  for (int64_t r = 0; r < row_count(grad, dim); ++r) {
    const T* g = elements<T>(args[0]) + row_start(grad, grad, dim, r);
    const T* y = elements<T>(args[1]) + row_start(grad, output, dim, r);
    T* x = results<T>(args[4]) + row_start(grad, out, dim, r);
    const int64_t gs = step(grad, dim), ys = step(output, dim), xs = step(out, dim);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += Log ? g[i * gs] : g[i * gs] * y[i * ys];
    const T total = static_cast<T>(sum);
    for (int64_t i = 0; i < n; ++i) {
      x[i * xs] = Log ? g[i * gs] - std::exp(y[i * ys]) * total : (g[i * gs] - total) * y[i * ys];
    }
  }
  return 0;
}

}  // namespace

BRINGUP_EXPORT int32_t softmax(void** args, int32_t, const bringup_ctx*) {
  return forward<false>(args);
}
BRINGUP_EXPORT int32_t log_softmax(void** args, int32_t, const bringup_ctx*) {
  return forward<true>(args);
}
BRINGUP_EXPORT int32_t softmax_backward(void** args, int32_t, const bringup_ctx* ctx) {
  return backward<false>(args, ctx);
}
BRINGUP_EXPORT int32_t log_softmax_backward(void** args, int32_t, const bringup_ctx* ctx) {
  return backward<true>(args, ctx);
}
