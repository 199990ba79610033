// bringup::rms_norm(Tensor x, Tensor? weight, float eps) -> Tensor
//
// RMSNorm over the last dimension; see norm.h. With EPS eps is a tensor of one element
// of that type.
#include "bringup/kernel.h"
#include "norm.h"

#ifndef SCALAR
#define SCALAR float
#endif

using namespace bringup_kernels;

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  using T = ComputedAs<SCALAR>::type;
  const SCALAR* x = data_of<SCALAR>(args[0]);
  const RmsNorm<T, SCALAR> normalize{data_of<SCALAR>(args[1]), eps_of<T>(args[2])};
  SCALAR* out = data_of<SCALAR>(args[3]);
  return for_each_row(ctx, args[0],
                      [=](int64_t at, int64_t width) { normalize(x + at, out + at, width); });
}
