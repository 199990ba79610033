// bringup::batched_matmul(Tensor a, Tensor b, ScalarType? out_dtype) -> Tensor
//
// a [items, m, k] times b [items, k, n] -> [items, m, n]. Strides are as they come, so an expanded
// operand is read from one matrix.
#include "product.h"

using namespace bringup_kernels;

struct BatchedMatmulParams {
  bringup_params head;
  ELEMENT_C* out;
  const ELEMENT_A* a;
  const ELEMENT_B* b;
  int64_t items, m, n, k;
  int64_t a_stride[3];
  int64_t b_stride[3];
};

BRINGUP_EXPORT int32_t run(uint32_t, void*, const BatchedMatmulParams* p) {
  const auto first =
      product_of<Operand<ELEMENT_A, Layout(LAYOUT_A)>, Operand<ELEMENT_B, Layout(LAYOUT_B)>>(
          p, p->a_stride + 1, p->b_stride + 1);
  using T = Accumulator<ELEMENT_A, ELEMENT_B>;
  return run_batch(
      p->head.ctx, p->items, first,
      [p, &first](int64_t item) {
        auto product = first;
        product.left = first.left.shifted(item * p->a_stride[0]);
        product.right = first.right.shifted(item * p->b_stride[0]);
        return product;
      },
      [p](int64_t item, int64_t row, int64_t column, const auto* sums, int64_t count) {
        write_row<T>(p->out + (item * p->m + row) * p->n + column, sums, count,
                     [](Vec<T> sum, int64_t, int64_t) { return sum; });
      });
}
