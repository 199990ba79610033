// bringup::packed_linear_w8a8(Tensor x, Tensor panels, Tensor scales, Tensor? bias, int padding,
// str activation) -> Tensor
//
// As packed_linear_int8.cpp, but rows of x become int8 too, each with a scale of its own: its
// largest magnitude is 127. Products of int8 are summed exactly in int32, four of them at a time,
// as AVX512-VNNI has it; elsewhere the same in plain vectors. The weight is stored with
// 128 added (VNNI wants one factor without a sign), which is taken off again in `result`.
#include "panel_linear.h"

using namespace bringup_kernels;

namespace {

constexpr int64_t kInWord = 4;        // elements of depth in a word
constexpr int64_t kDeepest = 65536;   // 255 * 127 of them fit into int32
constexpr int32_t kWeightZero = 128;  // what is added to the weight
constexpr float kLargest = 127.0f;

struct DotKernel {
  using Sum = int32_t;
  using Left = int32_t;
  using Panel = int32_t;
  using Out = float;
  struct Row {
    float scale;
    int32_t offset;  // of sums: what kWeightZero added
  };
  static constexpr int kWidth = 1;
  static constexpr bool kHasResult = true;

  template <int>
  static Vec<int32_t> element(const int32_t* from) {
    return load(from);
  }

  static Vec<int32_t> add_step(Vec<int32_t> sum, int32_t left, Vec<int32_t> right) {
#if defined(__AVX512VNNI__) && defined(__clang__)
    return __builtin_ia32_vpdpbusd512(sum, right, splat(left));
#elif defined(__AVX512VNNI__)
    return __builtin_ia32_vpdpbusd_v16si(sum, right, splat(left));
#else
#pragma GCC unroll 4
    for (int shift = 0; shift < 32; shift += 8) {
      sum += (right >> shift & 255) * static_cast<int32_t>(static_cast<int8_t>(left >> shift));
    }
    return sum;
#endif
  }

  static Vec<float> result(Vec<int32_t> sum, Row row) {
    return __builtin_convertvector(sum - row.offset, Vec<float>) * row.scale;
  }

  KERNEL_NOINLINE static void lay_out_rows(int32_t* to, Row* facts,
                                           const bringup::View<const float, 2>& x, int64_t first,
                                           int64_t rows) {
    const int64_t blocks = ceil_div(ceil_div(x.size(1), kInWord), kDepthOfBlock);
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = x.data() + (first + r) * x.stride(0);
      const Range range = range_of(from, x.stride(1), x.size(1));
      int32_t sum = 0;
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t start = b * kDepthOfBlock * kInWord;
        const int64_t count = smaller(kDepthOfBlock * kInWord, x.size(1) - start);
        auto* bytes = reinterpret_cast<int8_t*>(to + (b * rows + r) * kRowStride);
        sum += quantise(bytes, from + start * x.stride(1), x.stride(1), count, range.inverse);
      }
      facts[r] = {range.scale, sum * kWeightZero};
    }
  }

 private:
  struct Range {
    float scale;
    float inverse;
  };

  // NaN where an element is not finite, so that all of the row's results are.
  static Range range_of(const float* from, int64_t stride, int64_t count) {
    Vec<float> most{}, poison{};
    for (int64_t i = 0; i < count; i += kLanes<float>) {
      const Vec<float> value =
          load_some<float>(from + i * stride, stride, smaller(kLanes<float>, count - i));
      const Vec<float> magnitude = value < 0.0f ? -value : value;
      most = magnitude > most ? magnitude : most;
      poison += value * 0.0f;
    }
    const float top = largest<float>(most);
    return {top / kLargest + sum<float>(poison), top > 0 ? kLargest / top : 0.0f};
  }

  // Elements times `inverse`, rounded to nearest, as bytes; fills up the last word with zeros.
  static int32_t quantise(int8_t* to, const float* from, int64_t stride, int64_t count,
                          float inverse) {
    Vec<int32_t> total{};
    for (int64_t i = 0; i < count; i += kLanes<float>) {
      const int64_t here = smaller(kLanes<float>, count - i);
      const Vec<float> value = load_some<float>(from + i * stride, stride, here) * inverse;
      const Vec<float> half = value < 0.0f ? splat(-0.5f) : splat(0.5f);
      const auto whole = __builtin_convertvector(value + half, Vec<int32_t>);
      const Bytes bytes = __builtin_convertvector(whole, Bytes);
      total += __builtin_convertvector(bytes, Vec<int32_t>);
      const int64_t filled = ceil_div(here, kInWord) * kInWord;
      __builtin_memcpy(to + i, &bytes, static_cast<size_t>(filled));
    }
    return sum<int32_t>(total);
  }
};

}  // namespace

const char* bringup_can_implement(void** args, int32_t, const bringup_ctx*) {
  return bringup::tensor(args[0]).shape[1] > kDeepest
             ? "x is deeper than 65536, where sums may not fit into int32"
             : nullptr;
}

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  return run_scaled_linear<DotKernel>(args, ctx);
}
