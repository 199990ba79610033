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

constexpr int64_t kRows = 4;  // of the result at a time: each row of b is read once for them

void multiply(const Matrix& a, const T* b, int64_t columns, const Added& plus, double alpha,
              const Result& out, T* sums) {
  for (int64_t i = 0; i < a.rows; i += kRows) {
    const int64_t rows = a.rows - i < kRows ? a.rows - i : kRows;
    for (int64_t j = 0; j < rows * columns; ++j) sums[j] = 0;
    for (int64_t k = 0; k < a.columns; ++k) {
      const T* line = b + k * columns;
      for (int64_t r = 0; r < rows; ++r) {
        const T factor = a.at(i + r, k);
        T* sum = sums + r * columns;
        for (int64_t j = 0; j < columns; ++j) sum[j] += factor * line[j];
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
  const Matrix first = matrix(b);
  T* const room = bringup::workspace<T>(ctx, first.rows * first.columns + kRows * first.columns);
  if (room == nullptr) return bringup::fail(ctx, "no memory for a copy of the second matrix");
  for (int64_t batch = 0; batch < batches; ++batch) {
    const Matrix right = matrix(b, batch);
    const T* rows = packed(right, room + kRows * right.columns);
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
