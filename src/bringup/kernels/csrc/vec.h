// Short vectors for the shipped kernels: as wide as the target's registers, written with the vector
// extensions that g++ and clang++ share, so that the same source is AVX-512, AVX2 or NEON code. No
// intrinsics, no math library.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace bringup_kernels {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kVectorRegisters = 32;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
constexpr int kVectorRegisters = 16;
#elif defined(__aarch64__)
constexpr int kVectorBytes = 16;
constexpr int kVectorRegisters = 32;
#else
constexpr int kVectorBytes = 16;
constexpr int kVectorRegisters = 16;
#endif

#if defined(__FMA__) || defined(__AVX512F__) || defined(__aarch64__)
#define KERNEL_FUSES
#endif
#if defined(__has_builtin)
#define KERNEL_HAS_BUILTIN(name) __has_builtin(name)
#else
#define KERNEL_HAS_BUILTIN(name) 0
#endif

// The vector of T, the integer vector of the same shape, and the number of lanes.
template <class T>
struct VectorOf;

template <>
struct VectorOf<float> {
  typedef float type __attribute__((vector_size(kVectorBytes)));
  typedef int32_t mask __attribute__((vector_size(kVectorBytes)));
};

template <>
struct VectorOf<double> {
  typedef double type __attribute__((vector_size(kVectorBytes)));
  typedef int64_t mask __attribute__((vector_size(kVectorBytes)));
};

template <class T>
using Vec = typename VectorOf<T>::type;
template <class T>
using Mask = typename VectorOf<T>::mask;
template <class T>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

template <class T>
inline Vec<T> load(const T* from) {
  Vec<T> value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
inline void store(T* to, Vec<T> value) {
  __builtin_memcpy(to, &value, sizeof value);
}

// The first `count` lanes; the others read as `rest`.
template <class T>
inline Vec<T> load_part(const T* from, int64_t count, T rest = T(0)) {
  Vec<T> value = rest - Vec<T>{};
  __builtin_memcpy(&value, from, static_cast<size_t>(count) * sizeof(T));
  return value;
}

template <class T>
inline void store_part(T* to, Vec<T> value, int64_t count) {
  __builtin_memcpy(to, &value, static_cast<size_t>(count) * sizeof(T));
}

template <class T>
inline Vec<T> splat(T value) {
  return value - Vec<T>{};  // x - 0 keeps the sign of a zero, x + 0 does not
}

// a * b + c for vectors of T, or T as all of one's lanes: rounded once where the processor has an
// instruction for it, otherwise twice. The optimiser has no say (-ffp-contract=fast leaves it to
// where a product is inlined, so that strides, tails or tiles would change bits).
inline Vec<float> fused(Vec<float> a, Vec<float> b, Vec<float> c) {
#if !defined(KERNEL_FUSES)
  return a * b + c;
#elif KERNEL_HAS_BUILTIN(__builtin_elementwise_fma)
  return __builtin_elementwise_fma(a, b, c);
#elif defined(__AVX512F__)
  return __builtin_ia32_vfmaddps512_mask(a, b, c, static_cast<short>(-1), 4);  // current rounding
#elif defined(__AVX2__)
  return __builtin_ia32_vfmaddps256(a, b, c);
#elif defined(__FMA__)
  return __builtin_ia32_vfmaddps(a, b, c);
#else
  return __builtin_aarch64_fmav4sf(a, b, c);
#endif
}

inline Vec<double> fused(Vec<double> a, Vec<double> b, Vec<double> c) {
#if !defined(KERNEL_FUSES)
  return a * b + c;
#elif KERNEL_HAS_BUILTIN(__builtin_elementwise_fma)
  return __builtin_elementwise_fma(a, b, c);
#elif defined(__AVX512F__)
  return __builtin_ia32_vfmaddpd512_mask(a, b, c, static_cast<char>(-1), 4);
#elif defined(__AVX2__)
  return __builtin_ia32_vfmaddpd256(a, b, c);
#elif defined(__FMA__)
  return __builtin_ia32_vfmaddpd(a, b, c);
#else
  return __builtin_aarch64_fmav2df(a, b, c);
#endif
}

inline Vec<float> lanes_of(Vec<float> value) { return value; }
inline Vec<double> lanes_of(Vec<double> value) { return value; }
inline Vec<float> lanes_of(float value) { return splat(value); }
inline Vec<double> lanes_of(double value) { return splat(value); }

template <class A, class B, class C>
inline auto multiply_add(A a, B b, C c) {
  return fused(lanes_of(a), lanes_of(b), lanes_of(c));
}

template <class T>
inline T sum(Vec<T> value) {
  T total = 0;
  for (int lane = 0; lane < kLanes<T>; ++lane) total += value[lane];
  return total;
}

template <class T>
inline T largest(Vec<T> value) {
  T best = value[0];
  for (int lane = 1; lane < kLanes<T>; ++lane) best = value[lane] > best ? value[lane] : best;
  return best;
}

// e^x for x <= 0, as softmax needs it: relative error below 1e-7 for float; 0 where the result is
// not normal. float: 2^k times a polynomial that a least-squares fit on [-ln 2 / 2, ln 2 / 2] gave.
// double: the library's exp.
inline Vec<float> exp_nonpositive(Vec<float> x) {
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;  // ln 2 in two parts: the first product is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kSmallest = -87.0f;  // e^-87 is still a normal number
  const Mask<float> vanishes = x < kSmallest;
  x = vanishes ? splat(kSmallest) : x;
  const Mask<float> k =  // towards zero
      __builtin_convertvector(multiply_add(x, kLog2E, -0.5f), Mask<float>);
  const Vec<float> whole = __builtin_convertvector(k, Vec<float>);
  const Vec<float> r = multiply_add(whole, -kLn2Low, multiply_add(whole, -kLn2High, x));
  Vec<float> p = splat(1.3946504332125187e-3f);
  p = multiply_add(p, r, 8.369187824428082e-3f);
  p = multiply_add(p, r, 4.166626185178757e-2f);
  p = multiply_add(p, r, 1.6666515171527863e-1f);
  p = multiply_add(p, r, 0.5f);
  p = multiply_add(p * r, r, r) + 1.0f;
  const Vec<float> power = reinterpret_cast<Vec<float>>((k + 127) << 23);
  return vanishes ? splat(0.0f) : p * power;
}

inline Vec<double> exp_nonpositive(Vec<double> x) {
  Vec<double> result;
  for (int lane = 0; lane < kLanes<double>; ++lane) result[lane] = __builtin_exp(x[lane]);
  return result;
}

}  // namespace bringup_kernels
