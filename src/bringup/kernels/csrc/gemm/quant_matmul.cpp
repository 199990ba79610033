// bringup::quant_matmul(Tensor a, Tensor b, Tensor scale, Tensor? per_token_scale, Tensor? bias,
//                       ScalarType out_dtype) -> Tensor
//
// a [m, k] times b [k, n] of int8, times scale [1] or [n], times per_token_scale [m], plus bias
// [n] -> [m, n]. Where a is int8 too, the sums are exact whole numbers; otherwise (w8a16) they are
// float's.
#include "product.h"

using namespace bringup_kernels;

struct QuantMatmulParams {
  bringup_params head;
  ELEMENT_C* out;
  const ELEMENT_A* a;
  const int8_t* b;
  const float* scale;
  const float* per_token_scale;
  const float* bias;
  int64_t m, n, k;
  int64_t a_stride[2];
  int64_t b_stride[2];
  int64_t scales;
};

BRINGUP_EXPORT const char* can_implement(const QuantMatmulParams* p) {
  constexpr int64_t kMostExact = (int64_t{1} << 31) / (128 * 128) - 1;
  if (sizeof(ELEMENT_A) == 1 && p->k > kMostExact) {
    return "k must be at most 131071: sums of more products of int8 do not fit into int32";
  }
  if (p->scales != 1 && p->scales != p->n) {
    return "scale must have one element (per tensor) or n elements (per channel)";
  }
  return nullptr;
}

BRINGUP_EXPORT int32_t run(uint32_t, void*, const QuantMatmulParams* p) {
  const auto product =
      product_of<Operand<ELEMENT_A, Layout(LAYOUT_A)>, Operand<int8_t, Layout(LAYOUT_B)>>(
          p, p->a_stride, p->b_stride);
  const bool per_channel = p->scales == p->n;
  return run_one(
      p->head.ctx, product,
      [p, per_channel](int64_t row, int64_t column, const auto* sums, int64_t count) {
        const float token = p->per_token_scale == nullptr ? 1.0f : p->per_token_scale[row];
        write_row<float>(p->out + row * p->n + column, sums, count,
                         [&](Vec<float> sum, int64_t j, int64_t lanes) {
                           const Vec<float> scale =
                               per_channel ? load_some<float>(p->scale + column + j, 1, lanes)
                                           : splat(p->scale[0]);
                           const Vec<float> scaled = sum * scale * token;
                           if (p->bias == nullptr) return scaled;
                           return scaled + load_some<float>(p->bias + column + j, 1, lanes);
                         });
      });
}
