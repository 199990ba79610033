// bringup::basic_matmul_backward(Tensor grad, Tensor a, Tensor b) -> (Tensor, Tensor)
// bringup::batched_matmul_backward(Tensor grad, Tensor a, Tensor b) -> (Tensor, Tensor)
//
// For out = a b: grad b^T, the gradient of a, and a^T grad, that of b, each in its operand's dtype.
#include "product.h"

using namespace bringup_kernels;

namespace {

// Of a matrix, or of the first of a batch, which follow each other after `step` elements.
template <class Matrix>
Matrix read_matrix(const DLTensor& t, bool is_transposed, int64_t& step) {
  const int32_t row = t.ndim - (is_transposed ? 1 : 2);
  step = t.ndim == 3 ? t.strides[0] : 0;
  return {static_cast<const typename Matrix::Element*>(t.data), t.strides[row],
          t.strides[2 * t.ndim - 3 - row]};
}

// The products of a batch into `out`, [rows, columns] each.
template <class Element, class Left, class Right>
int32_t multiply(const bringup_ctx* ctx, Element* out, int64_t items,
                 const Product<Left, Right>& first, int64_t left_step, int64_t right_step) {
  using T = Accumulator<typename Left::Element, typename Right::Element>;
  return run_batch(
      ctx, items, first,
      [&](int64_t item) {
        auto product = first;
        product.left.data += item * left_step;
        product.right.data += item * right_step;
        return product;
      },
      [&](int64_t item, int64_t row, int64_t column, const auto* sums, int64_t count) {
        write_row<T>(out + (item * first.rows + row) * first.columns + column, sums, count,
                     [](Vec<T> sum, int64_t, int64_t) { return sum; });
      });
}

}  // namespace

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  using Grad = Operand<ELEMENT_GRAD, Layout(LAYOUT_GRAD)>;
  using LeftT = Operand<ELEMENT_A, transposed(Layout(LAYOUT_A))>;
  using RightT = Operand<ELEMENT_B, transposed(Layout(LAYOUT_B))>;
  const DLTensor& of_out = bringup::tensor(args[0]);
  const DLTensor& a = bringup::tensor(args[1]);
  const int64_t items = of_out.ndim == 3 ? of_out.shape[0] : 1;
  const int64_t m = of_out.shape[of_out.ndim - 2], n = of_out.shape[of_out.ndim - 1];
  const int64_t k = a.shape[a.ndim - 1];
  int64_t grad_step, a_step, b_step;
  const auto grad = read_matrix<Grad>(of_out, false, grad_step);
  const auto left_t = read_matrix<LeftT>(a, true, a_step);
  const auto right_t = read_matrix<RightT>(bringup::tensor(args[2]), true, b_step);
  auto* grad_a = static_cast<ELEMENT_A*>(bringup::tensor(args[3]).data);
  auto* grad_b = static_cast<ELEMENT_B*>(bringup::tensor(args[4]).data);
  const Product<Grad, RightT> for_a{grad, right_t, m, k, n};
  const Product<LeftT, Grad> for_b{left_t, grad, k, n, m};
  const int32_t failed = multiply(ctx, grad_a, items, for_a, grad_step, b_step);
  return failed ? failed : multiply(ctx, grad_b, items, for_b, a_step, grad_step);
}
