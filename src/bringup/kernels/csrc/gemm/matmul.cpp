// bringup::basic_matmul(Tensor a, Tensor b, ScalarType? out_dtype) -> Tensor
// bringup::nz_matmul(Tensor a, Tensor b, int m, int n, int k, ScalarType? out_dtype) -> Tensor
//
// a [m, k] times b [k, n] -> [m, n]. An nz operand is [columns / 16, rows / 16, 16, 16], rounded
// up.
#include "product.h"

using namespace bringup_kernels;

struct MatmulParams {
  bringup_params head;
  ELEMENT_C* out;
  const ELEMENT_A* a;
  const ELEMENT_B* b;
  int64_t m, n, k;
  int64_t a_rank, a_size[2], a_stride[2];
  int64_t b_rank, b_size[2], b_stride[2];
};

namespace {

int64_t blocks(int64_t size) { return (size + kFractal - 1) / kFractal; }

template <Layout kLayout>
bool fits(int64_t rank, const int64_t* size, int64_t rows, int64_t columns) {
  if (kLayout == Layout::kNz) {
    return rank == 4 && size[0] == blocks(columns) && size[1] == blocks(rows);
  }
  return rank == 2 && size[0] == rows && size[1] == columns;
}

}  // namespace

BRINGUP_EXPORT const char* can_implement(const MatmulParams* p) {
  if (!fits<Layout(LAYOUT_A)>(p->a_rank, p->a_size, p->m, p->k)) {
    return "a must be [m, k], or nz: contiguous [ceil(k / 16), ceil(m / 16), 16, 16]";
  }
  if (!fits<Layout(LAYOUT_B)>(p->b_rank, p->b_size, p->k, p->n)) {
    return "b must be [k, n], or nz: contiguous [ceil(n / 16), ceil(k / 16), 16, 16]";
  }
  return nullptr;
}

BRINGUP_EXPORT int32_t run(uint32_t, void*, const MatmulParams* p) {
  const auto product =
      product_of<Operand<ELEMENT_A, Layout(LAYOUT_A)>, Operand<ELEMENT_B, Layout(LAYOUT_B)>>(
          p, p->a_stride, p->b_stride);
  using T = Accumulator<ELEMENT_A, ELEMENT_B>;
  return run_one(p->head.ctx, product,
                 [p](int64_t row, int64_t column, const auto* sums, int64_t count) {
                   write_row<T>(p->out + row * p->n + column, sums, count,
                                [](Vec<T> sum, int64_t, int64_t) { return sum; });
                 });
}
