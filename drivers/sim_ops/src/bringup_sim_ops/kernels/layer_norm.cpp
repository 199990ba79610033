// native_layer_norm and its gradient over the last dimensions, which lie in rows. T: all tensors.
// Sums are kept in double.
#include "rows.h"

namespace {

using namespace sim_ops;

// Elements of a row: the dimensions of the schema's normalized_shape.
int64_t row_size(const void* arg) {
  int64_t size = 1;
  for (const int64_t n : bringup::list<int64_t>(arg)) size *= n;
  return size;
}

}  // namespace

// input, normalized_shape, weight?, bias?, eps, out, mean, rstd
BRINGUP_EXPORT int32_t layer_norm(void** args, int32_t, const bringup_ctx* ctx) {
  const int64_t n = row_size(args[1]);
  const int64_t rows = bringup::numel(bringup::tensor(args[6]));
  if (!has_or_is_none(args[0], rows * n) || !has_or_is_none(args[2], n) ||
      !has_or_is_none(args[3], n))
    return bringup::fail(ctx, "input, weight and bias are not rows of normalized_shape");
  const T* input = elements<T>(args[0]);
  const T* weight = args[2] != nullptr ? elements<T>(args[2]) : nullptr;
  const T* bias = args[3] != nullptr ? elements<T>(args[3]) : nullptr;
  const double eps = bringup::scalar<double>(args[4]);
  T* const out = results<T>(args[5]);
  T* const means = results<T>(args[6]);
  T* const rstds = results<T>(args[7]);
  bringup::parallel_for(ctx, rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* x = input + r * n;
      double sum = 0, squares = 0;
      for (int64_t i = 0; i < n; ++i) sum += x[i];
      const double mean = n == 0 ? 0 : sum / static_cast<double>(n);  // rstd is NaN then
      for (int64_t i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
      const double rstd = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
      means[r] = static_cast<T>(mean);
      rstds[r] = static_cast<T>(rstd);
      for (int64_t i = 0; i < n; ++i) {
        const T y = static_cast<T>((x[i] - mean) * rstd);
        out[r * n + i] =
            (weight != nullptr ? y * weight[i] : y) + (bias != nullptr ? bias[i] : T(0));
      }
    }
  });
  return 0;
}

// grad, input, normalized_shape, mean, rstd, weight?, bias?, mask[3], grad_input, grad_weight,
// grad_bias. A result that the mask leaves out is NULL.
BRINGUP_EXPORT int32_t layer_norm_backward(void** args, int32_t, const bringup_ctx* ctx) {
  const int64_t n = row_size(args[2]);
  const int64_t total = bringup::numel(bringup::tensor(args[1]));
  const int64_t rows = n == 0 ? 0 : total / n;
  const bool fits = alike(bringup::tensor(args[0]), bringup::tensor(args[1])) &&
                    rows * n == total && has_or_is_none(args[5], n) && has_or_is_none(args[6], n) &&
                    (n == 0 || (has_or_is_none(args[3], rows) && has_or_is_none(args[4], rows)));
  if (!fits) return bringup::fail(ctx, "the gradient, the input and its rows differ in shape");
  const T* grad = elements<T>(args[0]);
  const T* input = elements<T>(args[1]);
  const T* means = elements<T>(args[3]);
  const T* rstds = elements<T>(args[4]);
  const T* weight = args[5] != nullptr ? elements<T>(args[5]) : nullptr;
  T* const grad_input = args[8] != nullptr ? results<T>(args[8]) : nullptr;
  double* const sums = bringup::workspace<double>(ctx, 2 * n);
  if (sums == nullptr) return bringup::fail(ctx, "no memory for the sums of a row");
  for (int64_t i = 0; i < 2 * n; ++i) sums[i] = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const T* g = grad + r * n;
    const T* x = input + r * n;
    const double mean = means[r], rstd = rstds[r];
    double of_grad = 0, of_product = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double normal = (x[i] - mean) * rstd;
      const double scaled = g[i] * (weight != nullptr ? static_cast<double>(weight[i]) : 1.0);
      of_grad += scaled;
      of_product += scaled * normal;
      sums[i] += g[i] * normal;
      sums[n + i] += g[i];
    }
    of_grad /= static_cast<double>(n);
    of_product /= static_cast<double>(n);
    for (int64_t i = 0; grad_input != nullptr && i < n; ++i) {
      const double normal = (x[i] - mean) * rstd;
      const double scaled = g[i] * (weight != nullptr ? static_cast<double>(weight[i]) : 1.0);
      grad_input[r * n + i] = static_cast<T>(rstd * (scaled - of_grad - normal * of_product));
    }
  }
  for (int64_t i = 0; args[9] != nullptr && i < n; ++i) {
    results<T>(args[9])[i] = static_cast<T>(sums[i]);
  }
  for (int64_t i = 0; args[10] != nullptr && i < n; ++i) {
    results<T>(args[10])[i] = static_cast<T>(sums[n + i]);
  }
  return 0;
}
