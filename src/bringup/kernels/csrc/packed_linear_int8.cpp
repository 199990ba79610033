// bringup::packed_linear_int8(Tensor x, Tensor panels, Tensor scales, Tensor? bias, int padding,
// str activation) -> Tensor
//
// As packed_linear.cpp, but the weight is int8 times one scale for each column, in panels
// [ceil(n / 16), ceil(k / 4), 16, 4] with 128 added: it is widened where it is read, and the sum of
// a column is multiplied by its scale before the bias is added.
#include "panel_linear.h"

using namespace bringup_kernels;

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  return run_scaled_linear<FloatKernel<float, ByteWeight>>(args, ctx);
}
