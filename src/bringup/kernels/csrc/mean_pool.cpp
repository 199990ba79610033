// bringup::mean_pool(Tensor x, int[] actual_seq_lengths, bool normalize) -> Tensor
//
// The mean of the first actual_seq_lengths[b] rows of each x[b] in x[B, S, D] -> [B, D]: a sentence
// embedding out of token embeddings. normalize divides by the Euclidean norm (at least 1e-12, as
// torch.nn.functional.normalize).
#include "bringup/kernel.h"
#include "vec.h"

#ifndef SCALAR
#define SCALAR float
#endif

using namespace bringup_kernels;

namespace {

// The mean of `count` rows of `width` values, perhaps divided by its norm.
void pool(const SCALAR* x, int64_t count, int64_t width, bool normalize, SCALAR* out) {
  for (int64_t i = 0; i < width; ++i) out[i] = 0;
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t i = 0; i < width; ++i) out[i] += x[row * width + i];
  }
  SCALAR square = 0;
  for (int64_t i = 0; i < width; ++i) {
    out[i] /= static_cast<SCALAR>(count);
    square += out[i] * out[i];
  }
  if (!normalize) return;
  const SCALAR norm = static_cast<SCALAR>(__builtin_sqrt(square));
  for (int64_t i = 0; i < width; ++i) out[i] /= norm > SCALAR(1e-12) ? norm : SCALAR(1e-12);
}

}  // namespace

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<const SCALAR, 3> x(args[0]);
  const auto lengths = bringup::list<int64_t>(args[1]);
  const bool normalize = bringup::scalar<bool>(args[2]);
  auto* out = static_cast<SCALAR*>(bringup::tensor(args[3]).data);
  if (lengths.size() != x.size(0)) {
    return bringup::fail(ctx, "actual_seq_lengths must have one length for each sequence");
  }
  for (const int64_t length : lengths) {
    if (length < 1 || length > x.size(1)) {
      return bringup::fail(ctx, "actual_seq_lengths must lie between 1 and the padded length of x");
    }
  }
  const int64_t sequence = x.size(1) * x.size(2);
  bringup::parallel_for(
      ctx, x.size(0), 1 + 65536 / (sequence + 1), [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b) {
          pool(x.data() + b * sequence, lengths[b], x.size(2), normalize, out + b * x.size(2));
        }
      });
  return 0;
}
