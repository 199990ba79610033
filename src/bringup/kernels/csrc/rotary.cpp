// bringup::rotary(Tensor x, Tensor cos, Tensor sin) -> Tensor
//
// Rotary position embedding of [B, H, S, D] (Su et al.: RoFormer, 2021), halves of D rotated
// against each other as transformers does: x * cos + (-x2, x1) * sin. x has any strides; cos and
// sin are [B or 1, H or 1, S or 1, D].
#include "bringup/kernel.h"
#include "gemm/elements.h"

#ifndef SCALAR
#define SCALAR float
#endif

using namespace bringup_kernels;

namespace {

using T = ComputedAs<SCALAR>::type;
using Tensor4 = bringup::View<const SCALAR, 4>;

constexpr int64_t kWorthAThread = 16384;  // elements

// A row of cos or sin; dimensions of size 1 stand for all.
const SCALAR* row_of(const Tensor4& t, int64_t b, int64_t h, int64_t s) {
  return &t(t.size(0) == 1 ? 0 : b, t.size(1) == 1 ? 0 : h, t.size(2) == 1 ? 0 : s, 0);
}

// a * b as it is added to another product. In 16 bits it is rounded first, as the formula does in
// torch: where the two cancel, its result would be far away otherwise.
Vec<T> product(Vec<T> a, Vec<T> b) { return Rounded<SCALAR>::of(a * b); }
T product(SCALAR a, SCALAR b) {
  return static_cast<T>(static_cast<SCALAR>(static_cast<T>(a) * static_cast<T>(b)));
}

// One row of which all strides are 1.
void rotate(const SCALAR* x, const SCALAR* cos, const SCALAR* sin, SCALAR* out, int64_t half) {
  constexpr int64_t kStep = kLanes<T>;
  int64_t i = 0;
  for (; i + kStep <= half; i += kStep) {
    const Vec<T> low = load_as<T>(x + i), high = load_as<T>(x + half + i);
    store_as(out + i, product(low, load_as<T>(cos + i)) - product(high, load_as<T>(sin + i)));
    store_as(out + half + i,
             product(high, load_as<T>(cos + half + i)) + product(low, load_as<T>(sin + half + i)));
  }
  for (; i < half; ++i) {
    const SCALAR low = x[i], high = x[half + i];
    out[i] = static_cast<SCALAR>(product(low, cos[i]) - product(high, sin[i]));
    out[half + i] = static_cast<SCALAR>(product(high, cos[half + i]) + product(low, sin[half + i]));
  }
}

bool fits(const DLTensor& table, const DLTensor& x) {
  if (table.ndim != 4 || table.shape[3] != x.shape[3]) return false;
  for (int i = 0; i < 3; ++i) {
    if (table.shape[i] != 1 && table.shape[i] != x.shape[i]) return false;
  }
  return table.shape[3] < 2 || table.strides[3] == 1;
}

}  // namespace

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const DLTensor& given = bringup::tensor(args[0]);
  if (given.ndim != 4 || given.shape[3] % 2 != 0) {
    return bringup::fail(ctx, "x must be [batch, heads, length, depth] with an even depth");
  }
  if (given.shape[3] != 0 && given.strides[3] != 1) {
    return bringup::fail(ctx, "the last dimension of x must lie in memory without gaps");
  }
  if (!fits(bringup::tensor(args[1]), given) || !fits(bringup::tensor(args[2]), given)) {
    return bringup::fail(ctx,
                         "cos and sin must be [batch or 1, heads or 1, length or 1, depth], the "
                         "last dimension without gaps");
  }
  const Tensor4 x(given), cos(args[1]), sin(args[2]);
  const bringup::View<SCALAR, 4> out(args[3]);
  if (x.numel() == 0) return 0;
  const int64_t heads = x.size(1), length = x.size(2), half = x.size(3) / 2;
  bringup::parallel_for(ctx, x.size(0) * length, 1 + kWorthAThread / (heads * half * 2),
                        [&](int64_t begin, int64_t end) {
                          for (int64_t item = begin; item < end; ++item) {
                            const int64_t b = item / length, s = item % length;
                            for (int64_t h = 0; h < heads; ++h) {
                              rotate(&x(b, h, s, 0), row_of(cos, b, h, s), row_of(sin, b, h, s),
                                     &out(b, s, h, 0), half);
                            }
                          }
                        });
  return 0;
}
