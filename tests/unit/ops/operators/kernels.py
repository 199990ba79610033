"""Kernels that the tests of devices.kernel declare."""

from __future__ import annotations

from bringup import jit

GELU = """
#include <cmath>
template <class T> T gelu(T x, const char* approximate) {
  if (approximate[0] == 't') {
    return T(0.5) * x * (T(1) + std::tanh(T(0.7978845608028654) * (x + T(0.044715) * x * x * x)));
  }
  return T(0.5) * x * (T(1) + std::erf(x * T(0.7071067811865476)));
}
"""
GELU_BACKWARD = """
#include <cmath>
template <class T> T gelu_backward(T grad, T x, const char* approximate) {
  if (approximate[0] == 't') {
    const T k = T(0.7978845608028654), c = T(0.044715);
    const T t = std::tanh(k * (x + c * x * x * x));
    const T inner = k * (T(1) + T(3) * c * x * x);
    return grad * (T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * inner);
  }
  const T cdf = T(0.5) * (T(1) + std::erf(x * T(0.7071067811865476)));
  return grad * (cdf + x * std::exp(T(-0.5) * x * x) * T(0.3989422804014327));
}
"""
ADD = "template <class T> T add(T a, T b, T alpha) { return a + alpha * b; }"
MUL = "template <class T> T mul(T a, T b) { return a * b; }"
RELU = "template <class T> T relu(T x) { return x > T(0) ? x : x != x ? x : T(0); }"
CLAMP = """
template <class T> T clamp(T x, const T* low, const T* high) {
  if (x != x) return x;
  if (low && x < *low) x = *low;
  if (high && x > *high) x = *high;
  return x;
}
"""
WHERE = "template <class T> T where(T c, T a, T b) { return c != T(0) ? a : b; }"
LT = "template <class T> bool lt(T a, T b) { return a < b; }"
SQRT = "#include <cmath>\ntemplate <class T> T root(T x) { return std::sqrt(x); }"
SUM = """
template <class T> struct sum {
  double total = 0;
  void add(T value, int64_t) { total += value; }
  T result(int64_t) const { return static_cast<T>(total); }
};
"""
MAX_DIM = """
template <class T> struct largest {
  T best{};
  int64_t place = -1;
  void add(T value, int64_t index) {
    if (place < 0 || value > best || (value != value && best == best)) best = value, place = index;
  }
  void result(int64_t, T& value, int64_t& index) const { value = best, index = place; }
};
"""
ARGMAX = """
template <class T> struct argmax {
  T best{};
  int64_t place = -1;
  void add(T value, int64_t index) {
    if (place < 0 || value > best || (value != value && best == best)) best = value, place = index;
  }
  int64_t result(int64_t) const { return place; }
};
"""
LAYER_NORM = """
#include <cmath>
#include "bringup/kernel.h"
using bringup::tensor;
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const DLTensor& x = tensor(args[0]);
  int64_t n = 1;
  for (const int64_t size : bringup::list<int64_t>(args[1])) n *= size;
  const double eps = bringup::scalar<double>(args[4]);
  const T* in = static_cast<const T*>(x.data);
  const T* weight = args[2] ? static_cast<const T*>(tensor(args[2]).data) : nullptr;
  const T* bias = args[3] ? static_cast<const T*>(tensor(args[3]).data) : nullptr;
  T* out = static_cast<T*>(tensor(args[5]).data);
  T* means = static_cast<T*>(tensor(args[6]).data);
  T* rstds = static_cast<T*>(tensor(args[7]).data);
  for (int64_t r = 0; r < bringup::numel(tensor(args[6])); ++r, in += n, out += n) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; ++i) sum += in[i];
    const double mean = sum / n;
    for (int64_t i = 0; i < n; ++i) squares += (in[i] - mean) * (in[i] - mean);
    const double rstd = 1 / std::sqrt(squares / n + eps);
    means[r] = static_cast<T>(mean);
    rstds[r] = static_cast<T>(rstd);
    for (int64_t i = 0; i < n; ++i) {
      const double scaled = (in[i] - mean) * rstd * (weight ? weight[i] : 1);
      out[i] = static_cast<T>(scaled + (bias ? bias[i] : 0));
    }
  }
  return 0;
}
"""


def source(text: str, name: str = "kernel.cpp") -> jit.Source:
    """A kernel's text as a source."""
    return jit.Source(text=text, name=name)
