// bringup::gemm(Tensor a, Tensor b, Tensor? c, float alpha, float beta, ScalarType? out_dtype)
//     -> Tensor
//
// alpha * a [m, k] times b [k, n] + beta * c [m, n] -> [m, n], rounded once. As in BLAS, c is not
// read where beta is 0.
#include "product.h"

using namespace bringup_kernels;

struct GemmParams {
  bringup_params head;
  ELEMENT_OUT* out;
  const ELEMENT_A* a;
  const ELEMENT_B* b;
  const ELEMENT_C* c;
  int64_t m, n, k;
  int64_t a_stride[2];
  int64_t b_stride[2];
  double alpha;
  double beta;
};

BRINGUP_EXPORT int32_t run(uint32_t, void*, const GemmParams* p) {
  const auto product =
      product_of<Operand<ELEMENT_A, Layout(LAYOUT_A)>, Operand<ELEMENT_B, Layout(LAYOUT_B)>>(
          p, p->a_stride, p->b_stride);
  using T = Accumulator<ELEMENT_A, ELEMENT_B>;
  const T alpha = static_cast<T>(p->alpha);
  const T beta = static_cast<T>(p->beta);
  return run_one(p->head.ctx, product,
                 [p, alpha, beta](int64_t row, int64_t column, const auto* sums, int64_t count) {
                   const int64_t start = row * p->n + column;
                   write_row<T>(p->out + start, sums, count,
                                [&](Vec<T> sum, int64_t j, int64_t lanes) {
                                  if (beta == T(0)) return alpha * sum;
                                  const Vec<T> c = load_or_zeros<T>(p->c, start + j, lanes);
                                  return multiply_add(beta, c, alpha * sum);
                                });
                 });
}
