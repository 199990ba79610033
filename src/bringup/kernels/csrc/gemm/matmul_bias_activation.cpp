// bringup::matmul_bias_activation(Tensor a, Tensor b, Tensor? bias, str activation,
//                                 ScalarType? out_dtype) -> Tensor
//
// activation(a [m, k] times b [k, n] + bias [n]) -> [m, n], rounded once.
#include "../activations.h"
#include "product.h"

using namespace bringup_kernels;

struct MatmulBiasActivationParams {
  bringup_params head;
  ELEMENT_C* out;
  const ELEMENT_A* a;
  const ELEMENT_B* b;
  const ELEMENT_BIAS* bias;
  int64_t m, n, k;
  int64_t a_stride[2];
  int64_t b_stride[2];
};

// What the macro ACTIVATION names.
namespace activation {
template <class Vector>
Vector none(Vector v) {
  return v;
}
using bringup_kernels::gelu;
using bringup_kernels::relu;
using bringup_kernels::silu;
}  // namespace activation

BRINGUP_EXPORT int32_t run(uint32_t, void*, const MatmulBiasActivationParams* p) {
  const auto product =
      product_of<Operand<ELEMENT_A, Layout(LAYOUT_A)>, Operand<ELEMENT_B, Layout(LAYOUT_B)>>(
          p, p->a_stride, p->b_stride);
  using T = Accumulator<ELEMENT_A, ELEMENT_B>;
  return run_one(
      p->head.ctx, product, [p](int64_t row, int64_t column, const auto* sums, int64_t count) {
        write_row<T>(
            p->out + row * p->n + column, sums, count,
            [p, column](Vec<T> sum, int64_t j, int64_t lanes) {
              return activation::ACTIVATION(sum + load_or_zeros<T>(p->bias, column + j, lanes));
            });
      });
}
