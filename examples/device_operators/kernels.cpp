#include "kernels.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace vendor {
namespace {

// out = f(x...), element by element, whatever the strides.
template <class T, class F>
int32_t map(const F& f, const DLTensor& out_tensor, const DLTensor& x_tensor) {
  const bringup::View<const T> x(x_tensor);
  const bringup::View<T> out(out_tensor);
  for (int64_t i = 0; i < out.numel(); ++i) out.at(i) = f(x.at(i));
  return 0;
}

template <class T, class F>
int32_t map(const F& f, const DLTensor& out_tensor, const DLTensor& x_tensor,
            const DLTensor& y_tensor) {
  const bringup::View<const T> x(x_tensor), y(y_tensor);
  const bringup::View<T> out(out_tensor);
  for (int64_t i = 0; i < out.numel(); ++i) out.at(i) = f(x.at(i), y.at(i));
  return 0;
}

const DLTensor& at(void** args, int32_t i) { return bringup::tensor(args[i]); }

template <class T>
int32_t relu(void** args, int32_t, const bringup_ctx*) {
  return map<T>([](T x) { return x < T(0) ? T(0) : x; }, at(args, 1), at(args, 0));
}

// The least integer is its own absolute value, as on cpu; -0.0 becomes 0.0.
template <class T>
T magnitude(T x) {
  if constexpr (std::is_integral_v<T>) {
    return x < 0 ? static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(x)) : x;
  } else {
    return std::fabs(x);
  }
}

template <class T>
int32_t absolute(void** args, int32_t, const bringup_ctx*) {
  return map<T>(&magnitude<T>, at(args, 1), at(args, 0));
}

// NaN wins, as torch.maximum says.
template <class T>
int32_t maximum(void** args, int32_t, const bringup_ctx*) {
  return map<T>([](T x, T y) { return x != x || x > y ? x : y; }, at(args, 2), at(args, 0),
                at(args, 1));
}

bringup_kernel_fn pick(DLDataType dtype, bringup_kernel_fn of_float, bringup_kernel_fn of_double,
                       bringup_kernel_fn of_int32, bringup_kernel_fn of_int64) {
  if (dtype.code == 2 && dtype.bits == 32) return of_float;
  if (dtype.code == 2 && dtype.bits == 64) return of_double;
  if (dtype.code == 0 && dtype.bits == 32) return of_int32;
  if (dtype.code == 0 && dtype.bits == 64) return of_int64;
  return nullptr;
}

}  // namespace

bringup_kernel_fn relu_kernel(DLDataType dtype) {
  return pick(dtype, &relu<float>, &relu<double>, &relu<int32_t>, &relu<int64_t>);
}

bringup_kernel_fn abs_kernel(DLDataType dtype) {
  return pick(dtype, &absolute<float>, &absolute<double>, &absolute<int32_t>, &absolute<int64_t>);
}

bringup_kernel_fn maximum_kernel(DLDataType dtype) {
  return pick(dtype, &maximum<float>, &maximum<double>, &maximum<int32_t>, &maximum<int64_t>);
}

int32_t hardswish(void** args, int32_t, const bringup_ctx*) {
  const auto f = [](float x) { return x * std::fmin(std::fmax(x + 3.0f, 0.0f), 6.0f) / 6.0f; };
  return map<float>(f, at(args, 1), at(args, 0));
}

int32_t threshold(void** args, int32_t, const bringup_ctx*) {
  const float cut = bringup::scalar<float>(args[1]);
  return map<float>([=](float x) { return std::fabs(x) < cut ? 0.0f : x; }, at(args, 2),
                    at(args, 0));
}

int32_t cube(void** args, int32_t, const bringup_ctx*) {
  return map<float>([](float x) { return x * x * x; }, at(args, 1), at(args, 0));
}

int32_t cube_backward(void** args, int32_t, const bringup_ctx*) {
  return map<float>([](float grad, float x) { return 3.0f * x * x * grad; }, at(args, 2),
                    at(args, 0), at(args, 1));
}

int32_t softclip(void** args, int32_t, const bringup_ctx*) {
  const float limit = bringup::scalar<float>(args[1]);
  return map<float>([=](float x) { return limit * std::tanh(x / limit); }, at(args, 2),
                    at(args, 0));
}

int32_t softclip_backward(void** args, int32_t, const bringup_ctx*) {
  const float limit = bringup::scalar<float>(args[2]);
  const auto f = [=](float grad, float x) {
    const float y = std::tanh(x / limit);
    return grad * (1.0f - y * y);
  };
  return map<float>(f, at(args, 3), at(args, 0), at(args, 1));
}

namespace {

using Read = bringup::View<const float, 4>;
using Write = bringup::View<float, 4>;

float dot(const Read& a, const Read& b, int64_t batch, int64_t head, int64_t i, int64_t j) {
  float sum = 0;
  for (int64_t d = 0; d < a.size(3); ++d) sum += a(batch, head, i, d) * b(batch, head, j, d);
  return sum;
}

// Columns that row i sees, of `columns`.
int64_t visible(bool causal, int64_t i, int64_t columns) {
  return causal && i + 1 < columns ? i + 1 : columns;
}

void clear(const Write& x) {
  for (int64_t b = 0; b < x.size(0); ++b)
    for (int64_t h = 0; h < x.size(1); ++h)
      for (int64_t i = 0; i < x.size(2); ++i)
        for (int64_t d = 0; d < x.size(3); ++d) x(b, h, i, d) = 0;
}

}  // namespace

int32_t attention(void** args, int32_t, const bringup_ctx* ctx) {
  const Read q(args[0]), k(args[1]), v(args[2]);
  const bool causal = bringup::scalar<int64_t>(args[3]) != 0;
  const float scale = bringup::scalar<float>(args[4]);
  const Write out(args[5]);
  const bringup::View<float, 3> lse(args[6]);
  float* weights = bringup::workspace<float>(ctx, k.size(2));
  if (weights == nullptr) return bringup::fail(ctx, "no memory for a row of weights");
  clear(out);
  for (int64_t b = 0; b < q.size(0); ++b)
    for (int64_t h = 0; h < q.size(1); ++h)
      for (int64_t i = 0; i < q.size(2); ++i) {
        const int64_t columns = visible(causal, i, k.size(2));
        float largest = -std::numeric_limits<float>::infinity();
        for (int64_t j = 0; j < columns; ++j) {
          weights[j] = dot(q, k, b, h, i, j) * scale;
          largest = std::fmax(largest, weights[j]);
        }
        float sum = 0;
        for (int64_t j = 0; j < columns; ++j) sum += weights[j] = std::exp(weights[j] - largest);
        for (int64_t j = 0; j < columns; ++j)
          for (int64_t d = 0; d < v.size(3); ++d)
            out(b, h, i, d) += weights[j] / sum * v(b, h, j, d);
        lse(b, h, i) = largest + std::log(sum);
      }
  return 0;
}

int32_t attention_backward(void** args, int32_t, const bringup_ctx*) {
  const Read grad(args[0]), q(args[1]), k(args[2]), v(args[3]), out(args[4]);
  const bringup::View<const float, 3> lse(args[5]);
  const bool causal = bringup::scalar<int64_t>(args[6]) != 0;
  const float scale = bringup::scalar<float>(args[7]);
  const Write grad_q(args[8]), grad_k(args[9]), grad_v(args[10]);
  clear(grad_q);
  clear(grad_k);
  clear(grad_v);
  for (int64_t b = 0; b < q.size(0); ++b)
    for (int64_t h = 0; h < q.size(1); ++h)
      for (int64_t i = 0; i < q.size(2); ++i) {
        const float row = dot(grad, out, b, h, i, i);  // sum of weight times its gradient
        for (int64_t j = 0; j < visible(causal, i, k.size(2)); ++j) {
          const float weight = std::exp(dot(q, k, b, h, i, j) * scale - lse(b, h, i));
          const float slope = weight * (dot(grad, v, b, h, i, j) - row) * scale;
          for (int64_t d = 0; d < v.size(3); ++d) grad_v(b, h, j, d) += weight * grad(b, h, i, d);
          for (int64_t d = 0; d < q.size(3); ++d) {
            grad_q(b, h, i, d) += slope * k(b, h, j, d);
            grad_k(b, h, j, d) += slope * q(b, h, i, d);
          }
        }
      }
  return 0;
}

}  // namespace vendor
