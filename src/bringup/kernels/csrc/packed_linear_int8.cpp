// bringup::packed_linear_int8(Tensor x, Tensor panels, Tensor scales, Tensor? bias, int padding,
// str activation) -> Tensor
//
// As packed_linear.cpp, but the weight is int8 times one scale for each column, in panels
// [ceil(n / 16), ceil(k / 4), 16, 4] with 128 added: it is widened where it is read, and the sum of
// a column is multiplied by its scale before the bias is added.
#include "panel_linear.h"

using namespace bringup_kernels;

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  using Kernel = FloatKernel<float, ByteWeight>;
  const bringup::View<const float, 2> x(args[0]);
  const bringup::View<const uint8_t, 4> panels(args[1]);
  LinearArguments<float> given;
  if (const char* reason = given.read(args[3], args[4], args[5])) return bringup::fail(ctx, reason);
  const PanelLinear<Kernel> product{x,
                                    reinterpret_cast<const int32_t*>(panels.data()),
                                    static_cast<float*>(bringup::tensor(args[6]).data),
                                    x.size(0),
                                    panels.size(0) * kPanel - given.padding,
                                    panels.size(1),
                                    static_cast<const float*>(bringup::tensor(args[2]).data),
                                    given.bias,
                                    given.activation};
  if (!run_linear(ctx, product)) return bringup::fail(ctx, "no workspace memory left");
  return 0;
}
