// Elementwise operators: one function template each. T is the type that torch computes in: float
// for half precision. NaN goes through as torch has it.
#include <cmath>
#include <type_traits>

// --- arithmetic

template <class T>
T add(T self, T other, T alpha) {
  return self + alpha * other;
}

template <class T>
T sub(T self, T other, T alpha) {
  return self - alpha * other;
}

template <class T>
T mul(T self, T other) {
  return self * other;
}

template <class T>
T div(T self, T other) {
  return self / other;
}

template <class T>
T neg(T self) {
  return -self;
}

template <class T>
T reciprocal(T self) {
  return T(1) / self;
}

template <class T>
T addcmul(T self, T tensor1, T tensor2, T value) {
  return self + value * tensor1 * tensor2;
}

template <class T>
T addcdiv(T self, T tensor1, T tensor2, T value) {
  return self + value * tensor1 / tensor2;
}

// From the nearer end, so that a weight of 1 gives `end` itself.
template <class T>
T lerp(T self, T end, T weight) {
  return std::fabs(weight) < T(0.5) ? self + weight * (end - self)
                                    : end - (end - self) * (T(1) - weight);
}

template <class T>
T where(T condition, T self, T other) {
  return condition != T(0) ? self : other;
}

// A bound that is NaN makes everything NaN, whatever the other one is.
template <class T>
T clamp(T self, const T* min, const T* max) {
  if (self != self) return self;
  if (min != nullptr && *min != *min) return *min;
  if (max != nullptr && *max != *max) return *max;
  if (min != nullptr && self < *min) self = *min;
  if (max != nullptr && self > *max) self = *max;
  return self;
}

// Integers wrap around; a negative exponent leaves 1 / self, cut to an integer. Of floating point
// numbers those powers that torch has products and roots for, too.
template <class T>
T pow(T self, T exponent) {
  if constexpr (std::is_integral_v<T>) {
    if (exponent < 0) {
      if (self == T(1)) return T(1);
      return self == T(-1) ? (exponent % 2 == 0 ? T(1) : T(-1)) : T(0);
    }
    T result = 1;
    for (T factor = self; exponent != 0; factor = static_cast<T>(factor * factor)) {
      if (exponent % 2 != 0) result = static_cast<T>(result * factor);
      exponent = static_cast<T>(exponent / 2);
    }
    return result;
  } else {
    if (exponent == T(2)) return self * self;
    if (exponent == T(3)) return self * self * self;
    return std::pow(self, exponent);
  }
}

// Roots for a number as exponent: of -inf and -0 they are not std::pow's.
template <class T>
T pow_of_number(T self, T exponent) {
  if (exponent == T(0.5)) return std::sqrt(self);
  if (exponent == T(-0.5)) return T(1) / std::sqrt(self);
  return pow(self, exponent);
}

// --- functions

template <class T>
T sqrt(T self) {
  return std::sqrt(self);
}

template <class T>
T rsqrt(T self) {
  return T(1) / std::sqrt(self);
}

template <class T>
T exp(T self) {
  return std::exp(self);
}

template <class T>
T log(T self) {
  return std::log(self);
}

template <class T>
T tanh(T self) {
  return std::tanh(self);
}

template <class T>
T sigmoid(T self) {
  return T(1) / (T(1) + std::exp(-self));
}

template <class T>
T relu(T self) {
  return self < T(0) ? T(0) : self;
}

template <class T>
T silu(T self) {
  return self / (T(1) + std::exp(-self));
}

// --- gelu (Hendrycks and Gimpel, arXiv:1606.08415): by the error function, or by tanh

constexpr double kSqrtHalf = 0.70710678118654752440;
constexpr double kSqrtTwoOverPi = 0.79788456080286535588;
constexpr double kCubic = 0.044715;

inline bool is_tanh(const char* approximate) { return approximate[0] == 't'; }

template <class T>
T gelu(T self, const char* approximate) {
  if (is_tanh(approximate)) {
    const T inner = T(kSqrtTwoOverPi) * (self + T(kCubic) * self * self * self);
    return T(0.5) * self * (T(1) + std::tanh(inner));
  }
  return T(0.5) * self * (T(1) + std::erf(self * T(kSqrtHalf)));
}

template <class T>
T gelu_backward(T grad, T self, const char* approximate) {
  if (is_tanh(approximate)) {
    const T inner = T(kSqrtTwoOverPi) * (self + T(kCubic) * self * self * self);
    const T t = std::tanh(inner);
    const T slope = T(kSqrtTwoOverPi) * (T(1) + T(3 * kCubic) * self * self);
    return grad * (T(0.5) * (T(1) + t) + T(0.5) * self * (T(1) - t * t) * slope);
  }
  const T cdf = T(0.5) * (T(1) + std::erf(self * T(kSqrtHalf)));
  const T density = T(0.5 * kSqrtTwoOverPi) * std::exp(T(-0.5) * self * self);
  return grad * (cdf + self * density);
}

// --- gradients of the others

template <class T>
T threshold_backward(T grad, T self, T threshold) {
  return self <= threshold ? T(0) : grad;
}

template <class T>
T tanh_backward(T grad, T output) {
  return grad * (T(1) - output * output);
}

template <class T>
T sigmoid_backward(T grad, T output) {
  return grad * (T(1) - output) * output;
}

template <class T>
T silu_backward(T grad, T self) {
  const T s = T(1) / (T(1) + std::exp(-self));
  return grad * s * (T(1) + self * (T(1) - s));
}

template <class T>
T native_dropout_backward(T grad, T mask, T scale) {
  return grad * (mask * scale);
}
