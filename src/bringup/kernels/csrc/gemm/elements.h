// Element types of the GEMM family and how they become the vectors that are computed with: float
// for float, half, bfloat16 and int8_t, double for double. Conversions are integer arithmetic on
// whole vectors, so that no processor is refused for lacking 16-bit floats; where it has
// instructions for half, they give the same bits several times faster.
#pragma once

#include "../vec.h"
#include "bringup/kernel.h"

// Once in the binary: what is inlined everywhere is optimised everywhere, and compile time counts.
#define KERNEL_NOINLINE __attribute__((noinline))

namespace bringup_kernels {

// Floats of up to 8 bits: how many they have of each kind, and from which magnitude on they are
// infinite or NaN. One without fraction is a scale, 2^(bits - 127), and has no sign.
template <int kExponentBits, int kFractionBits, uint32_t kFirstSpecial>
struct SmallFloat {
  static constexpr int kFraction = kFractionBits;
  static constexpr uint32_t kSign = kFractionBits == 0 ? 0 : 1 << (kExponentBits + kFractionBits);
  static constexpr uint32_t kSpecial = kFirstSpecial;
  // What the exponents of float exceed these by, and what a subnormal counts: exact in any mode.
  static constexpr uint32_t kBias = 127 - ((1 << (kExponentBits - 1)) - 1);
  static constexpr float kSmallest =
      1.0f / (1 << (kFractionBits == 0 ? 0 : 126 - kBias + kFractionBits));

  uint8_t bits;

  operator float() const {
    const uint32_t magnitude = bits & (kFraction == 0 ? 0xffu : kSign - 1);
    uint32_t word = (magnitude << (23 - kFraction)) + (kBias << 23);
    if (kFraction == 0 && magnitude == 0) word = 0x400000;  // 2^-127
    if (magnitude >= kSpecial) word |= kFraction == 0 ? 0x7fc00000u : 0x7f800000u;
    float value;
    __builtin_memcpy(&value, &word, sizeof value);
    if (kFraction > 0 && magnitude >> kFraction == 0) {
      value = static_cast<float>(magnitude) * kSmallest;
    }
    return (bits & kSign) != 0 ? -value : value;
  }
};

// The formats that a tensor of bytes may hold; `plain` is what its dtype says.
namespace formats {
struct plain;
using float8_e4m3fn = SmallFloat<4, 3, 0x7f>;
using float8_e5m2 = SmallFloat<5, 2, 0x7c>;
using float8_e8m0fnu = SmallFloat<8, 0, 0xff>;
using float4_e2m1fn = SmallFloat<2, 1, 8>;
}  // namespace formats

template <class Element, class Format>
struct Stored {
  using type = Format;
  static constexpr bool fits = false;
};
template <class Format>
struct Stored<uint8_t, Format> {
  using type = Format;
  static constexpr bool fits = true;
};
template <class Element>
struct Stored<Element, formats::plain> {
  using type = Element;
  static constexpr bool fits = true;
};
template <>
struct Stored<uint8_t, formats::plain> {
  using type = int8_t;
  static constexpr bool fits = false;
};
template <class Element, class Format>
using stored = typename Stored<Element, Format>::type;
template <class Element, class Format>
constexpr bool is_stored = Stored<Element, Format>::fits;

template <class Element>
struct ComputedAs {
  using type = float;
};
template <>
struct ComputedAs<double> {
  using type = double;
};
// What products of these elements are computed in.
template <class First, class Second>
using Accumulator =
    decltype(typename ComputedAs<First>::type() + typename ComputedAs<Second>::type());

// What partial sums are kept in between two blocks of k. Products of int8_t are whole numbers below
// 2^14, so a float holds the sum of 1024 of them exactly, and int32_t the sum of the blocks.
template <class First, class Second>
struct PartialSumOf {
  using type = Accumulator<First, Second>;
};
template <>
struct PartialSumOf<int8_t, int8_t> {
  using type = int32_t;
};
template <class First, class Second>
using PartialSum = typename PartialSumOf<First, Second>::type;

typedef uint32_t Words __attribute__((vector_size(kVectorBytes)));
typedef uint16_t HalfWords __attribute__((vector_size(kVectorBytes / 2)));
typedef int8_t Bytes __attribute__((vector_size(kVectorBytes / 4)));
typedef uint8_t UnsignedBytes __attribute__((vector_size(kVectorBytes / 4)));

// Bytes as 32-bit lanes. g++ 12 takes a conversion of lanes apart.
#if defined(__AVX512F__) && !defined(__clang__)
typedef char CharLanes __attribute__((vector_size(kVectorBytes / 4)));
inline Mask<float> widened(Bytes bytes) {
  return __builtin_ia32_pmovsxbd512_mask(reinterpret_cast<CharLanes>(bytes), Mask<float>{},
                                         static_cast<short>(-1));
}
inline Words widened(UnsignedBytes bytes) {
  return reinterpret_cast<Words>(__builtin_ia32_pmovzxbd512_mask(
      reinterpret_cast<CharLanes>(bytes), Mask<float>{}, static_cast<short>(-1)));
}
#else
inline Mask<float> widened(Bytes bytes) { return __builtin_convertvector(bytes, Mask<float>); }
inline Words widened(UnsignedBytes bytes) { return __builtin_convertvector(bytes, Words); }
#endif

template <class To, class From>
inline To reinterpret(From from) {
  static_assert(sizeof(To) == sizeof(From), "both are as wide as a register");
  return reinterpret_cast<To>(from);
}

template <class Vector, class Element>
inline Vector load_bits(const Element* from) {
  Vector value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__F16C__))
#define KERNEL_CONVERTS_HALF
typedef short HalfLanes __attribute__((vector_size(kVectorBytes / 2)));
#endif

// --- loading -------------------------------------------------------------------------------------

inline Vec<float> load_float(const float* from) { return load(from); }

inline Vec<float> load_float(const bringup::bfloat16* from) {
  return reinterpret<Vec<float>>(__builtin_convertvector(load_bits<HalfWords>(from), Words) << 16);
}

// Exponent and fraction shifted into place are the value times 2^-112, subnormals included.
inline Vec<float> load_float(const bringup::half* from) {
#if defined(__AVX512F__)
  constexpr int kCurrentRounding = 4;
  return __builtin_ia32_vcvtph2ps512_mask(load_bits<HalfLanes>(from), Vec<float>{},
                                          static_cast<short>(-1), kCurrentRounding);
#elif defined(KERNEL_CONVERTS_HALF)
  return __builtin_ia32_vcvtph2ps256(load_bits<HalfLanes>(from));
#else
  constexpr float kScale = 5.192296858534828e33f;  // 2^112
  const Words bits = __builtin_convertvector(load_bits<HalfWords>(from), Words);
  const Words magnitude = (bits & 0x7fffu) << 13;
  const Words scaled = reinterpret<Words>(reinterpret<Vec<float>>(magnitude) * kScale);
  const Words special = reinterpret<Words>(magnitude >= 0x0f800000u) & 0x7f800000u;
  return reinterpret<Vec<float>>(scaled | special | (bits & 0x8000u) << 16);
#endif
}

inline Vec<float> load_float(const int8_t* from) {
  return __builtin_convertvector(widened(load_bits<Bytes>(from)), Vec<float>);
}

// As SmallFloat's operator float, of one with a fraction.
template <class Float>
inline Vec<float> decode(Words bits) {
  const Words magnitude = bits & (Float::kSign - 1);
  const Words special = reinterpret<Words>(magnitude >= Float::kSpecial) & 0x7f800000u;
  const Words normal = (magnitude << (23 - Float::kFraction)) + (Float::kBias << 23);
  const Vec<float> subnormal =
      __builtin_convertvector(reinterpret<Mask<float>>(magnitude), Vec<float>) * Float::kSmallest;
  const Words word =
      magnitude < (1u << Float::kFraction) ? reinterpret<Words>(subnormal) : normal | special;
  return reinterpret<Vec<float>>(word | (bits & Float::kSign) * (0x80000000u / Float::kSign));
}

template <int kExponentBits, int kFractionBits, uint32_t kSpecial>
inline Vec<float> load_float(const SmallFloat<kExponentBits, kFractionBits, kSpecial>* from) {
  if constexpr (kFractionBits > 0) {
    using Float = SmallFloat<kExponentBits, kFractionBits, kSpecial>;
    return decode<Float>(widened(load_bits<UnsignedBytes>(from)));
  } else {  // scales, of which a few are read
    Vec<float> value;
    for (int i = 0; i < kLanes<float>; ++i) value[i] = from[i];
    return value;
  }
}

inline Vec<float> load_float(const int32_t* from) {
  return __builtin_convertvector(load_bits<Mask<float>>(from), Vec<float>);
}

inline Vec<float> load_float(const double* from) {
  Vec<float> value;
  for (int i = 0; i < kLanes<float>; ++i) value[i] = static_cast<float>(from[i]);
  return value;
}

// kLanes<T> elements as T.
template <class T>
struct Loader {
  template <class Element>
  static Vec<T> all(const Element* from) {
    return load_float(from);
  }
};
template <>
struct Loader<double> {
  static Vec<double> all(const double* from) { return load(from); }
  template <class Element>
  static Vec<double> all(const Element* from) {
    Vec<double> value;
    for (int i = 0; i < kLanes<double>; ++i) value[i] = static_cast<double>(from[i]);
    return value;
  }
};

template <class T, class Element>
inline Vec<T> load_as(const Element* from) {
  return Loader<T>::all(from);
}

// The first `count` lanes, `stride` elements apart; the others are zeros.
template <class T, class Element>
inline Vec<T> load_some(const Element* from, int64_t stride, int64_t count) {
  if (stride == 1 && count == kLanes<T>) return load_as<T>(from);
  Element lanes[kLanes<T>];
  __builtin_memset(static_cast<void*>(lanes), 0, sizeof lanes);
  for (int64_t i = 0; i < count; ++i) lanes[i] = from[i * stride];
  return load_as<T>(lanes);
}

// `count` elements from `first` of an optional argument: an operand that is None has the type void
// and reads as zeros.
template <class T, class Element>
inline Vec<T> load_or_zeros(const Element* from, int64_t first, int64_t count) {
  return load_some<T>(from + first, 1, count);
}
template <class T>
inline Vec<T> load_or_zeros(const void*, int64_t, int64_t) {
  return Vec<T>{};
}

// --- storing -------------------------------------------------------------------------------------

inline void store_as(float* to, Vec<float> value) { store(to, value); }
inline void store_as(double* to, Vec<double> value) { store(to, value); }

// The nearest whole number, ties to even, the last one for what is beyond; 0 for NaN.
inline void store_as(int8_t* to, Vec<float> value) {
  constexpr float kWhole = 12582912.0f;  // 1.5 * 2^23, whose last bit counts 1
  value = value < 127.0f ? value : (value == value ? splat(127.0f) : Vec<float>{});
  value = value > -128.0f ? value : splat(-128.0f);
  const Bytes result =
      __builtin_convertvector(__builtin_convertvector(value + kWhole - kWhole, Mask<float>), Bytes);
  __builtin_memcpy(to, &result, sizeof result);
}

template <class Element>
inline void store_as(Element* to, Vec<double> value) {
  for (int i = 0; i < kLanes<double>; ++i)
    to[i] = static_cast<Element>(static_cast<float>(value[i]));
}
inline void store_as(double* to, Vec<float> value) {
  for (int i = 0; i < kLanes<float>; ++i) to[i] = static_cast<double>(value[i]);
}

// The upper half of each word becomes the nearest bfloat16, ties to even; a NaN stays one.
inline Words nearest_bfloat16(Vec<float> value) {
  const Words bits = reinterpret<Words>(value);
  const Words rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return (bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded;
}

inline void store_as(bringup::bfloat16* to, Vec<float> value) {
  const HalfWords result = __builtin_convertvector(nearest_bfloat16(value) >> 16, HalfWords);
  __builtin_memcpy(to, &result, sizeof result);
}

// As bringup::half::encode_bits, lane by lane.
inline void store_as(bringup::half* to, Vec<float> value) {
#if defined(KERNEL_CONVERTS_HALF)
  constexpr int kToNearestEven = 0;
#if defined(__AVX512F__)
  const auto result =
      __builtin_ia32_vcvtps2ph512_mask(value, kToNearestEven, HalfLanes{}, static_cast<short>(-1));
#else
  const auto result = __builtin_ia32_vcvtps2ph256(value, kToNearestEven);
#endif
#else
  const Words word = reinterpret<Words>(value) & 0x7fffffffu;
  const Words sign = (reinterpret<Words>(value) >> 16) & 0x8000u;
  const Words normal = (word - 0x38000000u + 0xfffu + ((word >> 13) & 1u)) >> 13;
  const Words subnormal = reinterpret<Words>(reinterpret<Vec<float>>(word) + 0.5f) - 0x3f000000u;
  const Words nan = ((word >> 13) & 0x3ffu) | 0x7e00u;
  Words narrow = word < 0x38800000u ? subnormal : normal;
  narrow = word >= 0x477ff000u ? Words{} + 0x7c00u : narrow;
  narrow = word > 0x7f800000u ? nan : narrow;
  const HalfWords result = __builtin_convertvector(narrow | sign, HalfWords);
#endif
  __builtin_memcpy(to, &result, sizeof result);
}

// The value that an element of a floating-point type keeps of it; `Rounded<Element>::of(value)`.
template <class Element>
struct Rounded {
  static Vec<Element> of(Vec<Element> value) { return value; }
};
template <>
struct Rounded<bringup::bfloat16> {
  static Vec<float> of(Vec<float> value) {
    return reinterpret<Vec<float>>(nearest_bfloat16(value) & 0xffff0000u);
  }
};
template <>
struct Rounded<bringup::half> {
  static Vec<float> of(Vec<float> value) {
    bringup::half lanes[kLanes<float>];
    store_as(lanes, value);
    return load_float(lanes);
  }
};

template <class T, class Element>
inline void store_some(Element* to, Vec<T> value, int64_t count) {
  if (count == kLanes<T>) return store_as(to, value);
  Element lanes[kLanes<T>];
  store_as(lanes, value);
  __builtin_memcpy(to, lanes, static_cast<size_t>(count) * sizeof(Element));
}

// Copies `count` elements that lie one after the other.
template <class T, class Element>
KERNEL_NOINLINE void copy_as(T* to, const Element* from, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes<T> <= count; i += kLanes<T>) store(to + i, load_as<T>(from + i));
  if (i < count) store_part(to + i, load_some<T>(from + i, 1, count - i), count - i);
}

}  // namespace bringup_kernels
