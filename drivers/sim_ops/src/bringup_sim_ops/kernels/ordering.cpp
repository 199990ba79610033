// Sorting, and the greatest elements, along one dimension. T: self.
#include <algorithm>

#include "rows.h"

namespace {

using namespace sim_ops;

// torch's order: a NaN is greater than every number.
bool less(T a, T b) { return a < b || (b != b && a == a); }

struct Items {
  T* values;
  int64_t* numbers;
  int64_t value_stride, number_stride;
};

// Writes the first `wanted` places of an order of the row.
void order_row(const T* row, int64_t stride, int64_t n, bool descending, int64_t wanted,
               int64_t* order, const Items& out) {
  for (int64_t i = 0; i < n; ++i) order[i] = i;
  const auto before = [&](int64_t a, int64_t b) {
    const T x = row[a * stride], y = row[b * stride];
    if (descending ? less(y, x) : less(x, y)) return true;
    if (descending ? less(x, y) : less(y, x)) return false;
    return a < b;  // stable
  };
  std::partial_sort(order, order + wanted, order + n, before);
  for (int64_t i = 0; i < wanted; ++i) {
    out.values[i * out.value_stride] = row[order[i] * stride];
    out.numbers[i * out.number_stride] = order[i];
  }
}

int32_t ordered(const bringup_ctx* ctx, const DLTensor& self, int64_t dim, bool descending,
                int64_t wanted, const DLTensor& values, const DLTensor& numbers) {
  const int64_t n = length(self, dim);
  if (bringup::numel(values) == 0) return 0;
  int64_t* const order = bringup::workspace<int64_t>(ctx, n);
  if (order == nullptr) return bringup::fail(ctx, "no memory for the order of a row");
  for (int64_t r = 0; r < row_count(self, dim); ++r) {
    const Items out{static_cast<T*>(values.data) + row_start(self, values, dim, r),
                    static_cast<int64_t*>(numbers.data) + row_start(self, numbers, dim, r),
                    step(values, dim), step(numbers, dim)};
    order_row(static_cast<const T*>(self.data) + row_start(self, self, dim, r), step(self, dim), n,
              descending, wanted, order, out);
  }
  return 0;
}

}  // namespace

// self, stable?, dim, descending, values, indices
BRINGUP_EXPORT int32_t sort(void** args, int32_t, const bringup_ctx* ctx) {
  const DLTensor& self = bringup::tensor(args[0]);
  const int64_t dim = wrapped(bringup::scalar<int64_t>(args[2]), self.ndim);
  return ordered(ctx, self, dim, bringup::scalar<bool>(args[3]), length(self, dim),
                 bringup::tensor(args[4]), bringup::tensor(args[5]));
}

// self, k, dim, largest, sorted, values, indices
BRINGUP_EXPORT int32_t topk(void** args, int32_t, const bringup_ctx* ctx) {
  const DLTensor& self = bringup::tensor(args[0]);
  const int64_t dim = wrapped(bringup::scalar<int64_t>(args[2]), self.ndim);
  return ordered(ctx, self, dim, bringup::scalar<bool>(args[3]), bringup::scalar<int64_t>(args[1]),
                 bringup::tensor(args[5]), bringup::tensor(args[6]));
}
