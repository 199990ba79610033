// bringup::basic_matmul_backward(Tensor grad, Tensor a, Tensor b) -> (Tensor, Tensor)
// bringup::batched_matmul_backward(Tensor grad, Tensor a, Tensor b) -> (Tensor, Tensor)
//
// For out = a b: grad b^T, the gradient of a, and a^T grad, that of b, each in its operand's dtype.
// Dimensions are those of a batch; basic_matmul's is a batch of one.
#include "product.h"

using namespace bringup_kernels;

struct MatmulBackwardParams {
  bringup_params head;
  ELEMENT_A* grad_a;
  ELEMENT_B* grad_b;
  const ELEMENT_GRAD* grad;
  const ELEMENT_A* a;
  const ELEMENT_B* b;
  int64_t m, n, k;
  int64_t grad_stride[2];
  int64_t a_stride[2];
  int64_t b_stride[2];
#ifdef BATCHED
  int64_t items;
  int64_t grad_step, a_step, b_step;
#endif
};

namespace {

// The products of a batch into `out`, [rows, columns] each.
template <class Element, class Left, class Right>
int32_t multiply(const bringup_ctx* ctx, Element* out, int64_t items,
                 const Product<Left, Right>& first, int64_t left_step, int64_t right_step) {
  using T = Accumulator<typename Left::Element, typename Right::Element>;
  return run_batch(
      ctx, items, first,
      [&](int64_t item) {
        auto product = first;
        product.left = first.left.shifted(item * left_step);
        product.right = first.right.shifted(item * right_step);
        return product;
      },
      [&](int64_t item, int64_t row, int64_t column, const auto* sums, int64_t count) {
        write_row<T>(out + (item * first.rows + row) * first.columns + column, sums, count,
                     [](Vec<T> sum, int64_t, int64_t) { return sum; });
      });
}

}  // namespace

BRINGUP_EXPORT int32_t run(uint32_t, void*, const MatmulBackwardParams* p) {
#ifdef BATCHED
  const int64_t items = p->items, grad_step = p->grad_step, a_step = p->a_step, b_step = p->b_step;
#else
  const int64_t items = 1, grad_step = 0, a_step = 0, b_step = 0;
#endif
  using Grad = Operand<ELEMENT_GRAD, Layout(LAYOUT_GRAD)>;
  using LeftT = Operand<ELEMENT_A, transposed(Layout(LAYOUT_A))>;
  using RightT = Operand<ELEMENT_B, transposed(Layout(LAYOUT_B))>;
  const Grad grad{p->grad, p->grad_stride[0], p->grad_stride[1]};
  const LeftT left_t{p->a, p->a_stride[1], p->a_stride[0]};
  const RightT right_t{p->b, p->b_stride[1], p->b_stride[0]};
  const Product<Grad, RightT> for_a{grad, right_t, p->m, p->k, p->n};
  const Product<LeftT, Grad> for_b{left_t, grad, p->k, p->n, p->m};
  const int32_t status = multiply(p->head.ctx, p->grad_a, items, for_a, grad_step, b_step);
  return status != 0 ? status : multiply(p->head.ctx, p->grad_b, items, for_b, a_step, grad_step);
}
