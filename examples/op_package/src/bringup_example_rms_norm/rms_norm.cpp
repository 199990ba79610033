// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight. args: x, weight, eps, out; all contiguous.
#include <cmath>

#include "bringup/kernel.h"

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const auto* x = static_cast<const DLTensor*>(args[0]);
  const T* in = static_cast<const T*>(x->data);
  const T* weight = static_cast<const T*>(static_cast<const DLTensor*>(args[1])->data);
  const double eps = *static_cast<const double*>(args[2]);
  T* out = static_cast<T*>(static_cast<const DLTensor*>(args[3])->data);
  const int64_t width = x->shape[x->ndim - 1];
  int64_t rows = 1;
  for (int32_t i = 0; i + 1 < x->ndim; ++i) rows *= x->shape[i];
  for (int64_t r = 0; r < rows; ++r, in += width, out += width) {
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) squares += static_cast<double>(in[i]) * in[i];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + eps);
    for (int64_t i = 0; i < width; ++i) out[i] = static_cast<T>(in[i] * scale * weight[i]);
  }
  return 0;
}
