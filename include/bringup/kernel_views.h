// C++17 sugar over kernel.h: typed strided views, scalars, lists, half and bfloat16, parallel_for.
// Included by kernel.h; needs no other header, so that a small kernel compiles in a blink.
// Everything here is inline. What the operator has checked already (schema types, input contract)
// is not checked again, but a view refuses a tensor of another dtype or rank, because it would read
// past the sizes or leave elements unwritten: the caller sees a KernelError. `matches` asks first.
//
// Parameters have long names: `T` and its like are what dtype macros are called (-DT=float).
//
//     BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
//       const bringup::View<const float, 2> x(args[0]);
//       const bringup::View<float, 2> out(args[1]);
//       bringup::parallel_for(ctx, x.size(0), 16, [&](int64_t begin, int64_t end) {
//         for (int64_t i = begin; i < end; ++i)
//           for (int64_t j = 0; j < x.size(1); ++j) out(i, j) = 2 * x(i, j);
//       });
//       return 0;
//     }
#ifndef BRINGUP_KERNEL_VIEWS_H_
#define BRINGUP_KERNEL_VIEWS_H_

#include "bringup/kernel.h"

#define BRINGUP_EXPORT extern "C" __attribute__((visibility("default")))

#ifdef __CUDACC__
#define BRINGUP_HOST_DEVICE __host__ __device__
#else
#define BRINGUP_HOST_DEVICE
#endif

extern "C++" {
namespace bringup {

// --- element types -------------------------------------------------------------------------------

// IEEE binary16 in memory; computes as float. Rounds to nearest even, keeps infinities and NaN.
struct half {
  uint16_t bits;

  half() = default;
  BRINGUP_HOST_DEVICE half(float value) : bits(encode(value)) {}
  BRINGUP_HOST_DEVICE operator float() const { return decode(bits); }

#if defined(__aarch64__)
#define BRINGUP_NATIVE_HALF __fp16  // g++ knows _Float16 in C++ only from version 13 there
#elif defined(__FLT16_MANT_DIG__) && !defined(__CUDACC__)
#define BRINGUP_NATIVE_HALF _Float16
#endif
#ifdef BRINGUP_NATIVE_HALF
  BRINGUP_HOST_DEVICE static uint16_t encode(float value) {
    const BRINGUP_NATIVE_HALF narrow = static_cast<BRINGUP_NATIVE_HALF>(value);
    uint16_t bits;
    __builtin_memcpy(&bits, &narrow, sizeof bits);
    return bits;
  }
  BRINGUP_HOST_DEVICE static float decode(uint16_t bits) {
    BRINGUP_NATIVE_HALF narrow;
    __builtin_memcpy(&narrow, &bits, sizeof bits);
    return static_cast<float>(narrow);
  }
#undef BRINGUP_NATIVE_HALF
#else
  BRINGUP_HOST_DEVICE static uint16_t encode(float value) { return encode_bits(value); }
  BRINGUP_HOST_DEVICE static float decode(uint16_t bits) { return decode_bits(bits); }
#endif

  // The same without a 16-bit float in the compiler.
  BRINGUP_HOST_DEVICE static uint16_t encode_bits(float value) {
    uint32_t word;
    __builtin_memcpy(&word, &value, sizeof word);
    const uint32_t sign = (word >> 16) & 0x8000u;
    word &= 0x7fffffffu;
    if (word >= 0x7f800000u) {  // infinity and NaN; a NaN stays one when its payload is cut off
      const uint32_t quiet = word > 0x7f800000u ? 0x200u | ((word >> 13) & 0x3ffu) : 0u;
      return static_cast<uint16_t>(sign | 0x7c00u | quiet);
    }
    if (word >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds past 65504
    if (word < 0x38800000u) {  // subnormal: the addition aligns and rounds the last bit
      float magnitude;
      __builtin_memcpy(&magnitude, &word, sizeof word);
      magnitude += 0.5f;
      __builtin_memcpy(&word, &magnitude, sizeof word);
      return static_cast<uint16_t>(sign | (word - 0x3f000000u));
    }
    const uint32_t odd = (word >> 13) & 1u;
    return static_cast<uint16_t>(sign | ((word - 0x38000000u + 0xfffu + odd) >> 13));
  }
  BRINGUP_HOST_DEVICE static float decode_bits(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1fu;
    uint32_t word = static_cast<uint32_t>(bits & 0x3ffu) << 13;
    float value;
    if (exponent == 0) {  // zero and subnormal: 2^-14 * 0.fraction
      word |= 0x38800000u;
      __builtin_memcpy(&value, &word, sizeof value);
      value -= 6.103515625e-05f;
      __builtin_memcpy(&word, &value, sizeof value);
    } else {
      word |= exponent == 0x1fu ? 0x7f800000u : (exponent + 112u) << 23;
    }
    word |= sign;
    __builtin_memcpy(&value, &word, sizeof value);
    return value;
  }
};

// The upper half of a float; computes as float. Rounds to nearest even, keeps infinities and NaN.
struct bfloat16 {
  uint16_t bits;

  bfloat16() = default;
  BRINGUP_HOST_DEVICE bfloat16(float value) : bits(encode(value)) {}
  BRINGUP_HOST_DEVICE operator float() const {
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float value;
    __builtin_memcpy(&value, &word, sizeof value);
    return value;
  }

  BRINGUP_HOST_DEVICE static uint16_t encode(float value) {
    uint32_t word;
    __builtin_memcpy(&word, &value, sizeof word);
    if ((word & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((word >> 16) | 0x40u);
    return static_cast<uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
  }
};

// A float of 8 bits as torch has it; computes as float, rounds to nearest even. What is too large
// becomes infinity where the format has one (kInfinite), NaN where its bits are those of -0
// (kNoNegativeZero), else the largest number.
template <int kExponent, int kBias, bool kInfinite, bool kNoNegativeZero>
struct float8 {
  uint8_t bits;

  float8() = default;
  BRINGUP_HOST_DEVICE float8(float value) : bits(encode(value)) {}
  BRINGUP_HOST_DEVICE operator float() const { return decode(bits); }

  static constexpr int kMantissa = 7 - kExponent;
  // From here on a magnitude is not finite.
  static constexpr uint32_t kEnd = kNoNegativeZero ? 0x80u : kInfinite ? 0x7cu : 0x7fu;

  BRINGUP_HOST_DEVICE static uint8_t encode(float value) {
    uint32_t word;
    __builtin_memcpy(&word, &value, sizeof word);
    const uint32_t sign = (word >> 24) & 0x80u;
    word &= 0x7fffffffu;
    uint32_t code = 0;
    if (word > 0x7f800000u) {
      code = kNoNegativeZero ? 0x80u : 0x7fu;
    } else if (word < static_cast<uint32_t>(128 - kBias) << 23) {  // subnormal: see half
      const uint32_t step = static_cast<uint32_t>(128 - kBias - kMantissa + 23) << 23;
      float magnitude, lowest;
      __builtin_memcpy(&magnitude, &word, sizeof word);
      __builtin_memcpy(&lowest, &step, sizeof step);
      magnitude += lowest;
      __builtin_memcpy(&word, &magnitude, sizeof word);
      code = word - step;
    } else {
      constexpr int kCut = 23 - kMantissa;
      word += ((1u << (kCut - 1)) - 1u) + ((word >> kCut) & 1u);
      code = (word - (static_cast<uint32_t>(127 - kBias) << 23)) >> kCut;
      constexpr uint32_t kMost = kInfinite || kNoNegativeZero ? kEnd : kEnd - 1;
      if (code > kMost) code = kMost;
    }
    return static_cast<uint8_t>(kNoNegativeZero && (code == 0 || code == kEnd) ? code
                                                                               : code | sign);
  }
  BRINGUP_HOST_DEVICE static float decode(uint8_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
    const uint32_t code = bits & 0x7fu;
    uint32_t word = (code << (23 - kMantissa)) + (static_cast<uint32_t>(127 - kBias) << 23);
    if (kNoNegativeZero ? bits == 0x80u : code >= kEnd) {
      word = kInfinite && code == kEnd ? 0x7f800000u : 0x7fc00000u;
    } else if (code >> kMantissa == 0) {
      const uint32_t step = static_cast<uint32_t>(128 - kBias - kMantissa) << 23;
      float magnitude;
      __builtin_memcpy(&magnitude, &step, sizeof step);
      magnitude *= static_cast<float>(code);
      __builtin_memcpy(&word, &magnitude, sizeof word);
    }
    word |= sign;
    float value;
    __builtin_memcpy(&value, &word, sizeof value);
    return value;
  }
};
using float8_e4m3fn = float8<4, 7, false, false>;
using float8_e5m2 = float8<5, 15, true, false>;
using float8_e4m3fnuz = float8<4, 8, false, true>;
using float8_e5m2fnuz = float8<5, 16, false, true>;

// A power of two from 2^-127 to 2^127, or NaN: a scale. What is between two rounds to the nearer.
struct float8_e8m0fnu {
  uint8_t bits;

  float8_e8m0fnu() = default;
  BRINGUP_HOST_DEVICE float8_e8m0fnu(float value) {
    uint32_t word;
    __builtin_memcpy(&word, &value, sizeof word);
    const uint32_t exponent = (word >> 23) & 0xffu, rest = word & 0x7fffffu;
    const bool up = exponent < 0xffu && rest + (exponent > 0 ? 1u : 0u) > 0x400000u;
    bits = static_cast<uint8_t>(exponent + (up ? 1u : 0u));
  }
  BRINGUP_HOST_DEVICE operator float() const {
    uint32_t word = static_cast<uint32_t>(bits) << 23;
    if (bits == 0) word = 0x400000u;
    if (bits == 0xffu) word = 0x7fc00000u;
    float value;
    __builtin_memcpy(&value, &word, sizeof value);
    return value;
  }
};
#undef BRINGUP_HOST_DEVICE

// The DLPack dtype of an element type.
template <class Element>
struct dtype_of;

#define BRINGUP_DTYPE_OF(type, code, bits)               \
  template <>                                            \
  struct dtype_of<type> {                                \
    static constexpr DLDataType value = {code, bits, 1}; \
  };                                                     \
  template <>                                            \
  struct dtype_of<const type> {                          \
    static constexpr DLDataType value = {code, bits, 1}; \
  };
BRINGUP_DTYPE_OF(int8_t, 0, 8)
BRINGUP_DTYPE_OF(int16_t, 0, 16)
BRINGUP_DTYPE_OF(int32_t, 0, 32)
BRINGUP_DTYPE_OF(int64_t, 0, 64)
BRINGUP_DTYPE_OF(uint8_t, 1, 8)
BRINGUP_DTYPE_OF(uint16_t, 1, 16)
BRINGUP_DTYPE_OF(uint32_t, 1, 32)
BRINGUP_DTYPE_OF(uint64_t, 1, 64)
BRINGUP_DTYPE_OF(half, 2, 16)
BRINGUP_DTYPE_OF(float, 2, 32)
BRINGUP_DTYPE_OF(double, 2, 64)
BRINGUP_DTYPE_OF(bfloat16, 4, 16)
BRINGUP_DTYPE_OF(bool, 6, 8)
BRINGUP_DTYPE_OF(float8_e4m3fn, 10, 8)
BRINGUP_DTYPE_OF(float8_e4m3fnuz, 11, 8)
BRINGUP_DTYPE_OF(float8_e5m2, 12, 8)
BRINGUP_DTYPE_OF(float8_e5m2fnuz, 13, 8)
BRINGUP_DTYPE_OF(float8_e8m0fnu, 14, 8)
#ifdef __GNUC__
BRINGUP_DTYPE_OF(bringup_complex64, 5, 64)
BRINGUP_DTYPE_OF(bringup_complex128, 5, 128)
#endif
#undef BRINGUP_DTYPE_OF

// --- arguments -----------------------------------------------------------------------------------

// True for an argument that is None.
inline bool is_none(const void* arg) { return arg == nullptr; }

// A Tensor argument (not None; see is_none).
inline const DLTensor& tensor(const void* arg) { return *static_cast<const DLTensor*>(arg); }

// A Scalar argument (not None).
inline const bringup_scalar& number(const void* arg) {
  return *static_cast<const bringup_scalar*>(static_cast<const bringup_list*>(arg)->data);
}

// A str argument.
inline const char* text(const void* arg) { return static_cast<const char*>(arg); }

namespace detail {
template <class Element>
struct stored {  // how the ABI carries an int, bool or dtype
  using type = int64_t;
};
template <>
struct stored<double> {
  using type = double;
};
template <>
struct stored<float> {
  using type = double;
};
}  // namespace detail

// An int, bool, dtype or float argument (not None): scalar<int64_t>, scalar<bool>, scalar<double>,
// ...
template <class Element>
Element scalar(const void* arg) {
  return static_cast<Element>(*static_cast<const typename detail::stored<Element>::type*>(arg));
}

// The same, `otherwise` for None.
template <class Element>
Element scalar_or(const void* arg, Element otherwise) {
  return arg != nullptr ? scalar<Element>(arg) : otherwise;
}

// An int[] or bool[] (List<int64_t>), float[] (List<double>) or Tensor[] (List<DLTensor>) argument.
template <class Element>
class List {
 public:
  List(const Element* data, int64_t size) : data_(data), size_(size) {}
  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const Element& operator[](int64_t i) const { return data_[i]; }
  const Element* begin() const { return data_; }
  const Element* end() const { return data_ + size_; }

 private:
  const Element* data_;
  int64_t size_;
};

template <>
class List<DLTensor> {
 public:
  List(const DLTensor* const* data, int64_t size) : data_(data), size_(size) {}
  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  bool has(int64_t i) const { return data_[i] != nullptr; }  // it is not None
  const DLTensor& operator[](int64_t i) const { return *data_[i]; }

 private:
  const DLTensor* const* data_;
  int64_t size_;
};

namespace detail {
template <class Element>
List<Element> make_list(const bringup_list& list, const Element*) {
  return {static_cast<const Element*>(list.data), list.size};
}
inline List<DLTensor> make_list(const bringup_list& list, const DLTensor*) {
  return {static_cast<const DLTensor* const*>(list.data), list.size};
}
}  // namespace detail

// A list argument; None reads as an empty list.
template <class Element>
List<Element> list(const void* arg) {
  const bringup_list none{nullptr, 0};
  const bringup_list& given = arg != nullptr ? *static_cast<const bringup_list*>(arg) : none;
  return detail::make_list(given, static_cast<const Element*>(nullptr));
}

// --- tensors -------------------------------------------------------------------------------------

inline int64_t numel(const DLTensor& t) {
  int64_t count = 1;
  for (int32_t i = 0; i < t.ndim; ++i) count *= t.shape[i];
  return count;
}

// Row-major without gaps. Strides of dimensions of size 1 do not count; a tensor without elements
// is contiguous.
inline bool is_contiguous(const DLTensor& t) {
  int64_t expected = 1;
  bool dense = true;
  for (int32_t i = t.ndim - 1; i >= 0; --i) {
    if (t.shape[i] == 0) return true;
    if (t.shape[i] != 1 && t.strides[i] != expected) dense = false;
    expected *= t.shape[i];
  }
  return dense;
}

// True when the elements are `Element`, and the rank is `rank` where one is given.
template <class Element>
bool matches(const DLTensor& t, int32_t rank = -1) {
  constexpr DLDataType expected = dtype_of<Element>::value;
  return t.dtype.code == expected.code && t.dtype.bits == expected.bits && t.dtype.lanes == 1 &&
         (rank < 0 || t.ndim == rank);
}

extern "C" {
// Who calls a kernel puts a function here that throws, when it loads the library: what a view does
// over a tensor of another dtype or rank. NULL (a caller that does not know it): nothing is
// refused. A `throw` in the kernel itself would double the time that a small one takes to compile.
__attribute__((weak, visibility("default"))) bringup_view_refusal bringup_refuse_view = nullptr;
}

namespace detail {
template <class Element, class = void>
struct has_dtype {
  static constexpr bool value = false;
};
template <class Element>
struct has_dtype<Element, decltype(void(dtype_of<Element>::value))> {
  static constexpr bool value = true;
};

// Refuses a tensor of another dtype (where the view's is known) or rank.
template <class Element, int Rank>
void check_view(const DLTensor& t) {
#ifndef __CUDA_ARCH__
  DLDataType expected = t.dtype;
  if constexpr (has_dtype<Element>::value) expected = dtype_of<Element>::value;
  const bool fits = expected.code == t.dtype.code && expected.bits == t.dtype.bits &&
                    t.dtype.lanes == 1 && (Rank < 0 || t.ndim == Rank);
  if (!fits && bringup_refuse_view != nullptr) bringup_refuse_view(expected, Rank, &t);
#else
  static_cast<void>(t);
#endif
}
}  // namespace detail

// A tensor's elements under their indices. With a rank the sizes and strides are kept in the view,
// so that loops over it do not read them again from memory.
template <class Element, int Rank = -1>
class View {
 public:
  explicit View(const DLTensor& t) : data_(static_cast<Element*>(t.data)) {
    detail::check_view<Element, Rank>(t);
    for (int i = 0; i < Rank; ++i) {
      sizes_[i] = t.shape[i];
      strides_[i] = t.strides[i];
    }
  }
  explicit View(const void* arg) : View(tensor(arg)) {}

  Element* data() const { return data_; }
  static constexpr int32_t rank() { return Rank; }
  int64_t size(int32_t i) const { return sizes_[i]; }
  int64_t stride(int32_t i) const { return strides_[i]; }
  int64_t numel() const {
    int64_t count = 1;
    for (int i = 0; i < Rank; ++i) count *= sizes_[i];
    return count;
  }

  // One index for each dimension.
  template <class... Index>
  Element& operator()(Index... index) const {
    static_assert(sizeof...(Index) == Rank, "a view takes one index for each dimension");
    int64_t offset = 0;
    int32_t i = 0;
    ((offset += static_cast<int64_t>(index) * strides_[i++]), ...);
    return data_[offset];
  }

 private:
  Element* data_;
  int64_t sizes_[Rank > 0 ? Rank : 1] = {};
  int64_t strides_[Rank > 0 ? Rank : 1] = {};
};

// The same for any rank; points into the DLTensor.
template <class Element>
class View<Element, -1> {
 public:
  explicit View(const DLTensor& t) : tensor_(&t) { detail::check_view<Element, -1>(t); }
  explicit View(const void* arg) : View(tensor(arg)) {}

  Element* data() const { return static_cast<Element*>(tensor_->data); }
  int32_t rank() const { return tensor_->ndim; }
  int64_t size(int32_t i) const { return tensor_->shape[i]; }
  int64_t stride(int32_t i) const { return tensor_->strides[i]; }
  int64_t numel() const { return bringup::numel(*tensor_); }
  bool contiguous() const { return is_contiguous(*tensor_); }

  // One index for each dimension.
  template <class... Index>
  Element& operator()(Index... index) const {
    int64_t offset = 0;
    int32_t i = 0;
    ((offset += static_cast<int64_t>(index) * tensor_->strides[i++]), ...);
    return data()[offset];
  }

  // The element with this number in row-major order, whatever the strides.
  Element& at(int64_t number) const {
    int64_t offset = 0;
    for (int32_t i = tensor_->ndim - 1; i >= 0; --i) {
      offset += number % tensor_->shape[i] * tensor_->strides[i];
      number /= tensor_->shape[i];
    }
    return data()[offset];
  }

 private:
  const DLTensor* tensor_;
};

// --- the context ---------------------------------------------------------------------------------

// Calls fn(begin, end) so that [0, n) is covered once, in chunks of at least `grain`, perhaps on
// several threads. fn must not throw and must not call parallel_for.
template <class Fn>
void parallel_for(const bringup_ctx* ctx, int64_t n, int64_t grain, const Fn& fn) {
  ctx->parallel_for(
      ctx, n, grain,
      [](int64_t begin, int64_t end, void* user) { (*static_cast<const Fn*>(user))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&fn)));
}

// Scratch memory for `count` elements; see bringup_ctx::workspace. nullptr when there is none left.
template <class Element>
Element* workspace(const bringup_ctx* ctx, int64_t count) {
  return static_cast<Element*>(ctx->workspace(ctx, static_cast<size_t>(count) * sizeof(Element)));
}

// `return bringup::fail(ctx, "why");`
inline int32_t fail(const bringup_ctx* ctx, const char* message) {
  ctx->set_error(ctx, message);
  return 1;
}

}  // namespace bringup
}  // extern "C++"

#endif  // BRINGUP_KERNEL_VIEWS_H_
