// bringup::bias_gelu(Tensor x, Tensor bias) -> Tensor
//
// The exact GELU of x + bias: v * Phi(v), Phi the normal distribution (Hendrycks, Gimpel: Gaussian
// Error Linear Units, 2016), absolute error below 1e-6 for float. No division, no exponential: on
// |v| <= 5.5, Phi(v) = 1/2 + v * P(2 v^2 / 5.5^2 - 1) with a polynomial P from a least-squares fit
// at Chebyshev points, weighted so that the error of v * Phi(v) is small; beyond, v * Phi(v) is 0
// or v within 1.1e-7.
#include "bringup/kernel.h"
#include "vec.h"

#ifndef SCALAR
#define SCALAR float
#endif

using namespace bringup_kernels;

namespace {

inline Vec<float> gelu(Vec<float> v) {
  constexpr float kReach = 5.5f;
  constexpr float kCoefficients[] = {
      -2.3081687686499208e-4f, 6.307812873274088e-4f,   -5.506773013621569e-4f,
      7.235331577248871e-4f,   -2.385935978963971e-3f,  4.616293124854565e-3f,
      -6.844884250313044e-3f,  1.0231968015432358e-2f,  -1.4988997019827366e-2f,
      2.036302350461483e-2f,   -2.6050321757793427e-2f, 3.2070524990558624e-2f,
      -3.8792602717876434e-2f, 4.773760959506035e-2f,   -6.417234241962433e-2f,
      1.285519301891327e-1f,
  };
  const Mask<float> above = v > kReach;
  const Mask<float> below = v < -kReach;
  const Vec<float> u = v * v * (2.0f / (kReach * kReach)) - 1.0f;
  Vec<float> p{};
  for (const float coefficient : kCoefficients) p = p * u + coefficient;
  const Vec<float> inside = v * (v * p + 0.5f);
  return above ? v : (below ? Vec<float>{} : inside);
}

inline Vec<double> gelu(Vec<double> v) {
  Vec<double> result;
  for (int lane = 0; lane < kLanes<double>; ++lane) {
    result[lane] = v[lane] * 0.5 * __builtin_erfc(-v[lane] * 0.70710678118654752440);
  }
  return result;
}

void add_and_apply(const SCALAR* x, const SCALAR* bias, SCALAR* out, int64_t width) {
  constexpr int64_t kStep = kLanes<SCALAR>;
  int64_t i = 0;
  for (; i + kStep <= width; i += kStep) store(out + i, gelu(load(x + i) + load(bias + i)));
  if (i == width) return;
  const int64_t rest = width - i;
  store_part(out + i, gelu(load_part(x + i, rest) + load_part(bias + i, rest)), rest);
}

}  // namespace

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<const SCALAR> x(args[0]);
  if (x.rank() == 0) return bringup::fail(ctx, "x needs a last dimension");
  const int64_t width = x.size(x.rank() - 1);
  if (x.numel() == 0) return 0;
  const auto* bias = static_cast<const SCALAR*>(bringup::tensor(args[1]).data);
  auto* out = static_cast<SCALAR*>(bringup::tensor(args[2]).data);
  bringup::parallel_for(ctx, x.numel() / width, 1 + 16384 / width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      add_and_apply(x.data() + row * width, bias, out + row * width, width);
    }
  });
  return 0;
}
