// bringup::gemv(Tensor a, Tensor x, Tensor? y, float alpha, float beta, ScalarType? out_dtype)
//     -> Tensor
//
// alpha * a [m, k] times x [k] + beta * y [m] -> [m]. A task is a few rows: where rows are
// contiguous each is a dot product, where columns are, rows lie in the lanes of vectors. The vector
// is laid out once. As in BLAS, y is not read where beta is 0.
#include "operand.h"

using namespace bringup_kernels;

struct GemvParams {
  bringup_params head;
  ELEMENT_OUT* out;
  const ELEMENT_A* a;
  const ELEMENT_X* x;
  const ELEMENT_Y* y;
  int64_t m, k;
  int64_t a_stride[2];
  double alpha;
  double beta;
};

namespace {

using T = Accumulator<ELEMENT_A, ELEMENT_X>;
using Matrix = Operand<ELEMENT_A, Layout(LAYOUT_A)>;
constexpr int64_t kRowsOfTask = 4 * kLanes<T>;
constexpr int64_t kWorthAThread = 65536;  // multiplications

// sums[r] for `rows` rows from `row`.
void multiply_rows(const Matrix& a, const T* x, int64_t depth, int64_t row, int64_t rows, T* sums) {
  if constexpr (Matrix::layout == Layout::kRow) {
    for (int64_t r = 0; r < rows; ++r) {
      const ELEMENT_A* from = a.at(row + r, 0);
      Vec<T> total[4] = {};
      int64_t i = 0;
      for (; i + 4 * kLanes<T> <= depth; i += 4 * kLanes<T>) {
        for (int part = 0; part < 4; ++part) {
          const int64_t at = i + part * kLanes<T>;
          total[part] = multiply_add(load_as<T>(from + at), load(x + at), total[part]);
        }
      }
      for (; i < depth; i += kLanes<T>) {
        const int64_t lanes = smaller(depth - i, kLanes<T>);
        total[0] =
            multiply_add(load_some<T>(from + i, 1, lanes), load_some<T>(x + i, 1, lanes), total[0]);
      }
      sums[r] = sum<T>((total[0] + total[1]) + (total[2] + total[3]));
    }
  } else {
    Vec<T> total[4] = {};
    for (int64_t i = 0; i < depth; ++i) {
      for (int part = 0; part < 4; ++part) {
        const int64_t first = part * kLanes<T>;
        if (first >= rows) break;
        const int64_t stride = Matrix::layout == Layout::kColumn ? 1 : a.row_stride;
        const int64_t lanes = smaller(rows - first, kLanes<T>);
        total[part] =
            multiply_add(x[i], load_some<T>(a.at(row + first, i), stride, lanes), total[part]);
      }
    }
    for (int part = 0; part < 4; ++part) store(sums + part * kLanes<T>, total[part]);
  }
}

}  // namespace

BRINGUP_EXPORT int32_t run(uint32_t, void*, const GemvParams* p) {
  T* x = bringup::workspace<T>(p->head.ctx, p->k);
  if (x == nullptr) return bringup::fail(p->head.ctx, "no workspace memory left");
  copy_as(x, p->x, p->k);
  const Matrix a{p->a, p->a_stride[0], p->a_stride[1]};
  const T alpha = static_cast<T>(p->alpha);
  const T beta = static_cast<T>(p->beta);
  bringup::parallel_for(p->head.ctx, (p->m + kRowsOfTask - 1) / kRowsOfTask,
                        1 + kWorthAThread / (kRowsOfTask * (p->k + 1)),
                        [&](int64_t begin, int64_t end) {
                          T sums[kRowsOfTask];
                          for (int64_t task = begin; task < end; ++task) {
                            const int64_t row = task * kRowsOfTask;
                            const int64_t rows = smaller(kRowsOfTask, p->m - row);
                            multiply_rows(a, x, p->k, row, rows, sums);
                            for (int64_t r = 0; r < rows; r += kLanes<T>) {
                              const int64_t lanes = smaller(rows - r, kLanes<T>);
                              Vec<T> value = alpha * load_some<T>(sums + r, 1, lanes);
                              if (beta != T(0)) {
                                const Vec<T> y = load_or_zeros<T>(p->y, row + r, lanes);
                                value = multiply_add(beta, y, value);
                              }
                              store_some<T>(p->out + row + r, value, lanes);
                            }
                          }
                        });
  return 0;
}
