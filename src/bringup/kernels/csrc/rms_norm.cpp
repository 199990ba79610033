// bringup::rms_norm(Tensor x, Tensor? weight, float eps) -> Tensor
//
// RMSNorm over the last dimension; see norm.h.
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
  const auto* weight =
      args[1] == nullptr ? nullptr : static_cast<const SCALAR*>(bringup::tensor(args[1]).data);
  const RmsNorm<SCALAR> normalize{weight, width, bringup::scalar<SCALAR>(args[2])};
  auto* out = static_cast<SCALAR*>(bringup::tensor(args[3]).data);
  bringup::parallel_for(ctx, x.numel() / width, rows_per_thread(width),
                        [&](int64_t begin, int64_t end) {
                          for (int64_t row = begin * width; row < end * width; row += width) {
                            normalize(x.data() + row, out + row);
                          }
                        });
  return 0;
}
