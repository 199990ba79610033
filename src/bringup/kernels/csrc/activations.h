// Activations on vectors, for kernels that apply one to what they have just computed.
#pragma once

#include "vec.h"

namespace bringup_kernels {

// v * Phi(v), Phi the normal distribution (Hendrycks, Gimpel: Gaussian Error Linear Units, 2016),
// absolute error below 1e-6 for float. No division, no exponential: on |v| <= 5.5, Phi(v) = 1/2 + v
// * P(2 v^2 / 5.5^2 - 1) with a polynomial P from a least-squares fit at Chebyshev points, weighted
// so that the error of v * Phi(v) is small; beyond, v * Phi(v) is 0 or v within 1.1e-7.
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
  const Vec<float> u = multiply_add(v * v, 2.0f / (kReach * kReach), -1.0f);
  Vec<float> p{};
  for (const float coefficient : kCoefficients) p = multiply_add(p, u, coefficient);
  const Vec<float> inside = v * multiply_add(v, p, 0.5f);
  return above ? v : (below ? Vec<float>{} : inside);
}

inline Vec<double> gelu(Vec<double> v) {
  Vec<double> result;
  for (int lane = 0; lane < kLanes<double>; ++lane) {
    result[lane] = v[lane] * 0.5 * __builtin_erfc(-v[lane] * 0.70710678118654752440);
  }
  return result;
}

// GELU with tanh in the place of erf (ibid.), which is v times a sigmoid: v / (1 + e^-s) with s = 2
// sqrt(2 / pi) (v + 0.044715 v^3). The exponential is taken of -|s|, so that it cannot overflow.
template <class Vector>
inline Vector gelu_tanh(Vector v) {
  using T = decltype(v[0] + 0);
  const Vector s = v * multiply_add(T(0.07135481627260025) * v, v, T(1.5957691216057308));
  const Vector power = exp_nonpositive(s < Vector{} ? s : -s);
  const Vector numerator = s < Vector{} ? v * power : v;
  return numerator / (1 + power);
}

// 1 / (1 + e^-v), by the exponential of -|v|, which cannot overflow; of silu and tanh the same.
template <class Vector>
inline Vector sigmoid(Vector v) {
  const Vector power = exp_nonpositive(v < Vector{} ? v : -v);
  return (v < Vector{} ? power : Vector{} + 1) / (1 + power);
}

inline Vec<float> tanh(Vec<float> v) {
  const Vec<float> away = v < Vec<float>{} ? -v : v;
  const Vec<float> power = exp_nonpositive(-2 * away);
  const Vec<float> far = (1 - power) / (1 + power);
  const Vec<float> w = v * v;  // near zero the difference would cancel: the series up to v^9
  Vec<float> p = splat(62.0f / 2835);
  p = multiply_add(p, w, -17.0f / 315);
  p = multiply_add(p, w, 2.0f / 15);
  p = multiply_add(p, w, -1.0f / 3);
  const Vec<float> near = multiply_add(p * w, v, v);
  return away < splat(0.25f) ? near : (v < Vec<float>{} ? -far : far);
}

inline Vec<double> tanh(Vec<double> v) {
  for (int lane = 0; lane < kLanes<double>; ++lane) v[lane] = __builtin_tanh(v[lane]);
  return v;
}

// NaN stays NaN.
template <class Vector>
inline Vector relu(Vector v) {
  return v < Vector{} ? Vector{} : v;
}

template <class Vector>
inline Vector leaky_relu(Vector v, Vector slope) {
  return v < Vector{} ? v * slope : v;
}

// The larger and the smaller of two, NaN where one is.
template <class Vector>
inline Vector maximum(Vector a, Vector b) {
  return a != a ? a : (a < b ? b : (b != b ? b : a));
}
template <class Vector>
inline Vector minimum(Vector a, Vector b) {
  return -maximum(-a, -b);
}

// v / (1 + e^-v) (Elfwing, Uchibe, Doya: Sigmoid-Weighted Linear Units, 2018).
template <class Vector>
inline Vector silu(Vector v) {
  const Vector power = exp_nonpositive(v < Vector{} ? v : -v);
  const Vector numerator = v < Vector{} ? v * power : v;
  return numerator / (1 + power);
}

}  // namespace bringup_kernels
