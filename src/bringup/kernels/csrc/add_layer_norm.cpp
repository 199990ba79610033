// bringup::add_layer_norm(Tensor x, Tensor residual, Tensor weight, Tensor bias, float eps) ->
// Tensor
//
// LayerNorm over the last dimension of x + residual, in one pass over memory; see norm.h.
#include "bringup/kernel.h"
#include "norm.h"

#ifndef SCALAR
#define SCALAR float
#endif

using namespace bringup_kernels;

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<const SCALAR> x(args[0]);
  if (x.rank() == 0 || x.size(x.rank() - 1) == 0) {
    return bringup::fail(ctx, "x needs a last dimension of at least 1");
  }
  const int64_t width = x.size(x.rank() - 1);
  const auto data = [args](int i) { return static_cast<SCALAR*>(bringup::tensor(args[i]).data); };
  const LayerNorm<SCALAR> normalize{data(2), data(3), width, bringup::scalar<SCALAR>(args[4])};
  const SCALAR* residual = data(1);
  SCALAR* out = data(5);
  bringup::parallel_for(ctx, x.numel() / width, rows_per_thread(width),
                        [&](int64_t begin, int64_t end) {
                          for (int64_t row = begin * width; row < end * width; row += width) {
                            normalize(x.data() + row, residual + row, out + row, out + row);
                          }
                        });
  return 0;
}
