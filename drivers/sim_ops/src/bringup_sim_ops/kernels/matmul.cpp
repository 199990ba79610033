// Matrix products of any layout: out = beta * self + alpha * (a @ b). T: all tensors.
#include "rows.h"

namespace {

using namespace sim_ops;

struct Matrix {
  const T* data;
  int64_t rows, columns, row_stride, column_stride;

  T at(int64_t i, int64_t j) const { return data[i * row_stride + j * column_stride]; }
};

struct Result {
  T* data;
  int64_t row_stride, column_stride;
};

Matrix matrix(const DLTensor& t, int64_t batch = 0) {
  const int32_t d = t.ndim - 2;
  return {static_cast<const T*>(t.data) + (d > 0 ? batch * t.strides[0] : 0), t.shape[d],
          t.shape[d + 1], t.strides[d], t.strides[d + 1]};
}

Result result(const DLTensor& t, int64_t batch = 0) {
  const int32_t d = t.ndim - 2;
  return {static_cast<T*>(t.data) + (d > 0 ? batch * t.strides[0] : 0), t.strides[d],
          t.strides[d + 1]};
}

// What is added, broadcast to the result: a stride of 0 repeats. No data: nothing is added.
struct Added {
  const T* data = nullptr;
  int64_t row_stride = 0, column_stride = 0;
  double beta = 0;
};

Added added(const DLTensor& t, int64_t rows, int64_t columns, double beta) {
  if (beta == 0) return {};  // NaN of `self` does not count then
  const auto stride = [&](int32_t from_end, int64_t size) {
    const int32_t d = t.ndim - from_end;
    return d >= 0 && t.shape[d] == size && size != 1 ? t.strides[d] : int64_t{0};
  };
  return {static_cast<const T*>(t.data), stride(2, rows), stride(1, columns), beta};
}

// Rows of `b` one after the other: b itself where it lies so, else a copy in `room`.
const T* packed(const Matrix& b, T* room) {
  if (b.column_stride == 1 && b.row_stride == b.columns) return b.data;
  for (int64_t k = 0; k < b.rows; ++k) {
    for (int64_t j = 0; j < b.columns; ++j) room[k * b.columns + j] = b.at(k, j);
  }
  return room;
}

// A block of the result that stays in registers: each element of `a` is read once for kColumns of
// them, each of `b` once for kRows. And a panel of `b` that stays in the cache: kDepth rows of it.
constexpr int64_t kRows = 6;
constexpr int64_t kColumns = 64 / static_cast<int64_t>(sizeof(T)) * 2;
constexpr int64_t kDepth = 256;

// Adds to `sums` (rows `columns` apart) the products of kRows rows of `a` with a panel of `b` whose
// rows are `width` apart. Sizes are constants, so that the block is kept in registers.
template <int64_t Rows>
void block(const T* a, int64_t depth, const T* b, int64_t width, T* sums, int64_t columns) {
  T kept[Rows][kColumns];
  for (int64_t r = 0; r < Rows; ++r)
    for (int64_t j = 0; j < kColumns; ++j) kept[r][j] = sums[r * columns + j];
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t r = 0; r < Rows; ++r)
      for (int64_t j = 0; j < kColumns; ++j) kept[r][j] += a[k * Rows + r] * b[k * width + j];
  for (int64_t r = 0; r < Rows; ++r)
    for (int64_t j = 0; j < kColumns; ++j) sums[r * columns + j] = kept[r][j];
}

// What is left at the edges.
void edge(const T* a, int64_t rows, int64_t depth, const T* b, int64_t width, int64_t count,
          T* sums, int64_t columns) {
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < count; ++j)
        sums[r * columns + j] += a[k * rows + r] * b[k * width + j];
}

// Rows of `a` one beside the other, as `block` reads them.
void gather_rows(const Matrix& a, int64_t i, int64_t rows, int64_t from, int64_t depth, T* room) {
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t r = 0; r < rows; ++r) room[k * rows + r] = a.at(i + r, from + k);
}

// room: kRows * kDepth elements, then kRows rows of the result.
void multiply(const Matrix& a, const T* b, int64_t columns, const Added& plus, double alpha,
              const Result& out, T* room) {
  T* const sums = room + kRows * kDepth;
  for (int64_t i = 0; i < a.rows; i += kRows) {
    const int64_t rows = a.rows - i < kRows ? a.rows - i : kRows;
    for (int64_t j = 0; j < rows * columns; ++j) sums[j] = 0;
    // alpha 0: what the product is does not count, as in BLAS.
    for (int64_t from = 0; alpha != 0 && from < a.columns; from += kDepth) {
      const int64_t depth = a.columns - from < kDepth ? a.columns - from : kDepth;
      gather_rows(a, i, rows, from, depth, room);
      const T* panel = b + from * columns;
      for (int64_t j = 0; j < columns; j += kColumns) {
        const int64_t count = columns - j < kColumns ? columns - j : kColumns;
        if (rows == kRows && count == kColumns) {
          block<kRows>(room, depth, panel + j, columns, sums + j, columns);
        } else {
          edge(room, rows, depth, panel + j, columns, count, sums + j, columns);
        }
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < columns; ++j) {
        T value = static_cast<T>(alpha) * sums[r * columns + j];
        if (plus.data != nullptr) {
          const T more = plus.data[(i + r) * plus.row_stride + j * plus.column_stride];
          value += static_cast<T>(plus.beta) * more;
        }
        out.data[(i + r) * out.row_stride + j * out.column_stride] = value;
      }
    }
  }
}

// The products of a batch, or of two matrices.
int32_t products(const bringup_ctx* ctx, const DLTensor& a, const DLTensor& b, const Added& plus,
                 double alpha, const DLTensor& out) {
  const int64_t batches = a.ndim == 3 ? a.shape[0] : 1;
  const Matrix left = matrix(a);
  const int32_t d = out.ndim - 2;
  const bool fits = a.ndim == b.ndim && a.ndim == out.ndim && left.columns == matrix(b).rows &&
                    out.shape[d] == left.rows && out.shape[d + 1] == matrix(b).columns &&
                    (d == 0 || (b.shape[0] == batches && out.shape[0] == batches));
  if (!fits) return bringup::fail(ctx, "the shapes of the matrices and the result do not fit");
  const Matrix first = matrix(b);
  const int64_t working = kRows * (kDepth + first.columns);
  T* const room = bringup::workspace<T>(ctx, working + first.rows * first.columns);
  if (room == nullptr) return bringup::fail(ctx, "no memory for a copy of the second matrix");
  for (int64_t batch = 0; batch < batches; ++batch) {
    const Matrix right = matrix(b, batch);
    const T* rows = packed(right, room + working);
    multiply(matrix(a, batch), rows, right.columns, plus, alpha, result(out, batch), room);
  }
  return 0;
}

}  // namespace

// self, mat2, out
BRINGUP_EXPORT int32_t product(void** args, int32_t, const bringup_ctx* ctx) {
  return products(ctx, bringup::tensor(args[0]), bringup::tensor(args[1]), {}, 1.0,
                  bringup::tensor(args[2]));
}

// self, mat1, mat2, beta, alpha, out; in place without `out`, which is `self` then
BRINGUP_EXPORT int32_t addmm(void** args, int32_t n, const bringup_ctx* ctx) {
  const DLTensor& out = bringup::tensor(args[n > 5 ? 5 : 0]);
  const Added plus = added(bringup::tensor(args[0]), out.shape[0], out.shape[1], number(args[3]));
  return products(ctx, bringup::tensor(args[1]), bringup::tensor(args[2]), plus, number(args[4]),
                  out);
}
