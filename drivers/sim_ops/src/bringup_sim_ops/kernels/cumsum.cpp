// Sums so far along one dimension. T: self, OUT: the result.
#include "rows.h"

// self, dim, dtype?, out; in place without `out`, which is `self` then
BRINGUP_EXPORT int32_t cumsum(void** args, int32_t n, const bringup_ctx*) {
  using namespace sim_ops;
  const DLTensor& self = bringup::tensor(args[0]);
  const DLTensor& out = bringup::tensor(args[n > 3 ? 3 : 0]);
  const int64_t dim = wrapped(bringup::scalar<int64_t>(args[1]), self.ndim);
  if (bringup::numel(self) == 0) return 0;
  for (int64_t r = 0; r < row_count(self, dim); ++r) {
    const T* from = elements<T>(args[0]) + row_start(self, self, dim, r);
    OUT* to = static_cast<OUT*>(out.data) + row_start(self, out, dim, r);
    Sum<OUT> sum = 0;
    for (int64_t i = 0; i < length(self, dim); ++i) {
      sum += static_cast<OUT>(from[i * step(self, dim)]);
      to[i * step(out, dim)] = static_cast<OUT>(sum);
    }
  }
  return 0;
}
