// bringup::packed_linear(Tensor x, Tensor panels, Tensor? bias, int padding, str activation) ->
// Tensor
//
// activation(x[m, k] times a frozen weight that lies in panels [ceil(n / 16), k, 16] + bias[n]) ->
// [m, n]; see panel_linear.h. `padding` columns of the last panel are none. Panels are of x's
// dtype, or bfloat16, which is widened where it is read.
#include "panel_linear.h"

#ifndef SCALAR
#define SCALAR float
#endif
#ifndef WEIGHT
#define WEIGHT SCALAR
#endif

using namespace bringup_kernels;

namespace {

template <class Element>
struct WeightOf {
  using type = PlainWeight<Element>;
};
template <>
struct WeightOf<bringup::bfloat16> {
  using type = Bfloat16Weight;
};

// Constants of a template: where a combination is refused, nothing of it must compile.
template <class T, class Element>
constexpr bool kSupported =
    sizeof(T) == sizeof(Element) || (sizeof(T) == 4 && sizeof(Element) == 2);

template <class T, class Element>
int32_t run_checked(void** args, const bringup_ctx* ctx) {
  if constexpr (kSupported<T, Element>) {
    using Kernel = FloatKernel<T, typename WeightOf<Element>::type>;
    const bringup::View<const T, 2> x(args[0]);
    const bringup::View<const Element, 4> panels(args[1]);
    LinearArguments<T> given;
    if (const char* reason = given.read(args[2], args[3], args[4])) {
      return bringup::fail(ctx, reason);
    }
    if (panels.size(3) != Kernel::kWidth) {
      return bringup::fail(ctx, "panels are not of the shape that pack_weight makes");
    }
    const PanelLinear<Kernel> product{
        x,
        reinterpret_cast<const typename Kernel::Panel*>(panels.data()),
        static_cast<T*>(bringup::tensor(args[5]).data),
        x.size(0),
        panels.size(0) * kPanel - given.padding,
        panels.size(1),
        nullptr,
        given.bias,
        given.activation};
    if (!run_linear(ctx, product)) return bringup::fail(ctx, "no workspace memory left");
    return 0;
  }
  return bringup::fail(ctx, "panels must be of x's dtype, or bfloat16 where x is float32");
}

}  // namespace

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  return run_checked<SCALAR, WEIGHT>(args, ctx);
}
