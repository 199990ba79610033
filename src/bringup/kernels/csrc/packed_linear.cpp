// bringup::packed_linear(Tensor x, Tensor panels, Tensor? bias, int padding, str activation) ->
// Tensor
//
// activation(x[m, k] times a frozen weight that lies in panels [ceil(n / 16), k, 16] + bias[n]) ->
// [m, n]; see panel_linear.h. `padding` columns of the last panel are none.
#include "panel_linear.h"

#ifndef SCALAR
#define SCALAR float
#endif

using namespace bringup_kernels;

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<const SCALAR, 2> x(args[0]);
  const bringup::View<const SCALAR, 3> panels(args[1]);
  const auto padding = bringup::scalar<int64_t>(args[3]);
  if (padding < 0 || padding >= kPanel) {
    return bringup::fail(ctx, "padding must be the columns that the last panel lacks, 0 to 15");
  }
  Activation activation;
  if (!parse_activation(bringup::text(args[4]), &activation)) {
    return bringup::fail(ctx, "activation must be none, relu, gelu, gelu_tanh or silu");
  }
  const auto* bias = bringup::is_none(args[2])
                         ? nullptr
                         : static_cast<const SCALAR*>(bringup::tensor(args[2]).data);
  auto* out = static_cast<SCALAR*>(bringup::tensor(args[5]).data);
  const PanelLinear<SCALAR> product{x,         panels.data(), bias,
                                    out,       x.size(0),     panels.size(0) * kPanel - padding,
                                    x.size(1), activation};
  if (!run_linear(ctx, product)) return bringup::fail(ctx, "no workspace memory left");
  return 0;
}
