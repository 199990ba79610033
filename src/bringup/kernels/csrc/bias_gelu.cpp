// bringup::bias_gelu(Tensor x, Tensor bias) -> Tensor
//
// The exact GELU of x + bias; see activations.h.
#include "activations.h"
#include "bringup/kernel.h"
#include "gemm/elements.h"

#ifndef SCALAR
#define SCALAR float
#endif

using namespace bringup_kernels;

namespace {

using T = ComputedAs<SCALAR>::type;

void add_and_apply(const SCALAR* x, const SCALAR* bias, SCALAR* out, int64_t width) {
  constexpr int64_t kStep = kLanes<T>;
  int64_t i = 0;
  for (; i + kStep <= width; i += kStep) {
    store_as(out + i, gelu(load_as<T>(x + i) + load_as<T>(bias + i)));
  }
  if (i == width) return;
  const int64_t rest = width - i;
  store_some<T>(out + i, gelu(load_some<T>(x + i, 1, rest) + load_some<T>(bias + i, 1, rest)),
                rest);
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
