// bringup::grouped_matmul(Tensor a, Tensor b, Tensor group_list, ScalarType? out_dtype) -> Tensor
//
// Rows of a [m, k] belong to groups, group g ends before row group_list[g]: its rows times b[g] of
// [groups, k, n] -> [m, n]. Rows behind the last group come out as zeros. group_list is read where
// it lies, by the kernel, so that a router on the device need not wait for the host.
#include "product.h"

using namespace bringup_kernels;

struct GroupedMatmulParams {
  bringup_params head;
  ELEMENT_C* out;
  const ELEMENT_A* a;
  const ELEMENT_B* b;
  const int64_t* group_list;
  int64_t groups, m, n, k;
  int64_t a_stride[2];
  int64_t b_stride[3];
};

BRINGUP_EXPORT int32_t run(uint32_t, void*, const GroupedMatmulParams* p) {
  const int64_t* ends = p->group_list;
  if (!are_ends(ends, p->groups, p->m)) {
    return bringup::fail(p->head.ctx,
                         "group_list must rise from 0 to at most m: the end of each group's rows");
  }
  const auto whole =
      product_of<Operand<ELEMENT_A, Layout(LAYOUT_A)>, Operand<ELEMENT_B, Layout(LAYOUT_B)>>(
          p, p->a_stride, p->b_stride + 1);
  const int64_t covered = p->groups == 0 ? 0 : ends[p->groups - 1];
  __builtin_memset(static_cast<void*>(p->out + covered * p->n), 0,
                   static_cast<size_t>((p->m - covered) * p->n) * sizeof(ELEMENT_C));
  using T = Accumulator<ELEMENT_A, ELEMENT_B>;
  return run_batch(
      p->head.ctx, p->groups, whole,
      [p, ends, &whole](int64_t group) {
        auto product = whole;
        const int64_t start = group_start(ends, group);
        product.rows = ends[group] - start;
        product.left = whole.left.shifted(start * p->a_stride[0]);
        product.right = whole.right.shifted(group * p->b_stride[0]);
        return product;
      },
      [p, ends](int64_t group, int64_t row, int64_t column, const auto* sums, int64_t count) {
        write_row<T>(p->out + (group_start(ends, group) + row) * p->n + column, sums, count,
                     [](Vec<T> sum, int64_t, int64_t) { return sum; });
      });
}
