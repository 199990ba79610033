// Tensors one after the other along a dimension. T: all of them.
#include "rows.h"

// tensors, dim, out
BRINGUP_EXPORT int32_t cat(void** args, int32_t, const bringup_ctx*) {
  using namespace sim_ops;
  const DLTensor& out = bringup::tensor(args[2]);
  const int64_t dim = wrapped(bringup::scalar<int64_t>(args[1]), out.ndim);
  int64_t begin = 0;
  const bringup::List<DLTensor> parts = bringup::list<DLTensor>(args[0]);
  for (int64_t p = 0; p < parts.size(); ++p) {
    const DLTensor* const part = &parts[p];
    if (bringup::numel(*part) == 0) continue;  // also the empty tensor of one dimension
    for (int64_t r = 0; r < row_count(*part, dim); ++r) {
      const T* from = static_cast<const T*>(part->data) + row_start(*part, *part, dim, r);
      T* to = static_cast<T*>(out.data) + row_start(*part, out, dim, r) + begin * step(out, dim);
      for (int64_t i = 0; i < length(*part, dim); ++i) {
        to[i * step(out, dim)] = from[i * step(*part, dim)];
      }
    }
    begin += length(*part, dim);
  }
  return 0;
}
