// bringup::silu_mul(Tensor gate, Tensor up) -> Tensor
//
// silu(gate) * up, the middle of a SwiGLU (Shazeer: GLU Variants Improve Transformer, 2020). The
// rows (last dimension) of both may lie apart, as two halves of one projection do.
#include "activations.h"
#include "bringup/kernel.h"
#include "gemm/elements.h"

#ifndef SCALAR
#define SCALAR float
#endif

using namespace bringup_kernels;

namespace {

using T = ComputedAs<SCALAR>::type;

// In 16 bits rounded before it is multiplied, as by the operators of torch.
Vec<T> activated(Vec<T> gate) { return Rounded<SCALAR>::of(silu(gate)); }

void multiply_row(const SCALAR* gate, const SCALAR* up, SCALAR* out, int64_t width) {
  constexpr int64_t kStep = kLanes<T>;
  int64_t i = 0;
  for (; i + kStep <= width; i += kStep) {
    store_as(out + i, activated(load_as<T>(gate + i)) * load_as<T>(up + i));
  }
  if (i == width) return;
  const int64_t rest = width - i;
  store_some<T>(out + i, activated(load_some<T>(gate + i, 1, rest)) * load_some<T>(up + i, 1, rest),
                rest);
}

}  // namespace

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<const SCALAR> gate(args[0]), up(args[1]);
  if (gate.rank() == 0) return bringup::fail(ctx, "gate needs a last dimension");
  if (gate.numel() == 0) return 0;
  const int last = gate.rank() - 1;
  const int64_t width = gate.size(last);
  if (width > 1 && (gate.stride(last) != 1 || up.stride(last) != 1)) {
    return bringup::fail(ctx, "the rows of gate and up must lie in memory without gaps");
  }
  auto* out = static_cast<SCALAR*>(bringup::tensor(args[2]).data);
  const int64_t rows = gate.numel() / width;
  bringup::parallel_for(ctx, rows, 1 + 16384 / width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      multiply_row(&gate.at(row * width), &up.at(row * width), out + row * width, width);
    }
  });
  return 0;
}
