// The gradients of x and weight. args: grad, x, weight, eps, grad_x, grad_weight; all contiguous.
#include <cmath>

#include "bringup/kernel.h"

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const auto data = [args](int i) {
    return static_cast<T*>(static_cast<const DLTensor*>(args[i])->data);
  };
  const auto* x = static_cast<const DLTensor*>(args[1]);
  const T *grad = data(0), *in = data(1), *weight = data(2);
  const double eps = *static_cast<const double*>(args[3]);
  T *grad_x = data(4), *grad_weight = data(5);
  const int64_t width = x->shape[x->ndim - 1];
  int64_t rows = 1;
  for (int32_t i = 0; i + 1 < x->ndim; ++i) rows *= x->shape[i];
  for (int64_t i = 0; i < width; ++i) grad_weight[i] = 0;
  for (int64_t r = 0; r < rows; ++r, grad += width, in += width, grad_x += width) {
    double squares = 0, product = 0;
    for (int64_t i = 0; i < width; ++i) {
      squares += static_cast<double>(in[i]) * in[i];
      product += static_cast<double>(grad[i]) * weight[i] * in[i];
    }
    const double mean = squares / static_cast<double>(width) + eps;
    const double scale = 1 / std::sqrt(mean);
    const double pull = product / (static_cast<double>(width) * mean);
    for (int64_t i = 0; i < width; ++i) {
      grad_x[i] = static_cast<T>(scale * (static_cast<double>(grad[i]) * weight[i] - in[i] * pull));
      grad_weight[i] += static_cast<T>(grad[i] * in[i] * scale);
    }
  }
  return 0;
}
