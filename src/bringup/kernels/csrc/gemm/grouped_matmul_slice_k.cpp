// bringup::grouped_matmul_slice_k(Tensor a, Tensor b, Tensor group_list, ScalarType? out_dtype)
//     -> Tensor
//
// Columns of a [m, k] and rows of b [k, n] belong to groups, group g ends before group_list[g]: the
// product of each group -> [groups, m, n]; zeros for a group without columns.
#include "product.h"

using namespace bringup_kernels;

struct GroupedMatmulSliceKParams {
  bringup_params head;
  ELEMENT_C* out;
  const ELEMENT_A* a;
  const ELEMENT_B* b;
  const int64_t* group_list;
  int64_t groups, m, n, k;
  int64_t a_stride[2];
  int64_t b_stride[2];
};

BRINGUP_EXPORT int32_t run(uint32_t, void*, const GroupedMatmulSliceKParams* p) {
  const int64_t* ends = p->group_list;
  if (!are_ends(ends, p->groups, p->k)) {
    return bringup::fail(p->head.ctx,
                         "group_list must rise from 0 to at most k: the end of each group's depth");
  }
  const auto whole =
      product_of<Operand<ELEMENT_A, Layout(LAYOUT_A)>, Operand<ELEMENT_B, Layout(LAYOUT_B)>>(
          p, p->a_stride, p->b_stride);
  using T = Accumulator<ELEMENT_A, ELEMENT_B>;
  return run_batch(
      p->head.ctx, p->groups, whole,
      [ends, &whole](int64_t group) {
        auto product = whole;
        const int64_t start = group_start(ends, group);
        product.depth = ends[group] - start;
        product.left.data = whole.left.at(0, start);
        product.right.data = whole.right.at(start, 0);
        return product;
      },
      [p](int64_t group, int64_t row, int64_t column, const auto* sums, int64_t count) {
        write_row<T>(p->out + (group * p->m + row) * p->n + column, sums, count,
                     [](Vec<T> sum, int64_t, int64_t) { return sum; });
      });
}
