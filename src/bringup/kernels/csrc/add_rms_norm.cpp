// bringup::add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) ->
// (Tensor normalized, Tensor total)
//
// RMSNorm over the last dimension of x + residual, and that sum; see norm.h. With EPS eps is a
// tensor of one element of that type.
#include "bringup/kernel.h"
#include "norm.h"

#ifndef SCALAR
#define SCALAR float
#endif

using namespace bringup_kernels;

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  using T = ComputedAs<SCALAR>::type;
  const SCALAR *x = data_of<SCALAR>(args[0]), *residual = data_of<SCALAR>(args[1]);
  const RmsNorm<T, SCALAR> normalize{data_of<SCALAR>(args[2]), eps_of<T>(args[3])};
  SCALAR *out = data_of<SCALAR>(args[4]), *total = data_of<SCALAR>(args[5]);
  return for_each_row(ctx, args[0], [=](int64_t at, int64_t width) {
    add_row<T>(x + at, residual + at, total + at, width);
    normalize(total + at, out + at, width);
  });
}
