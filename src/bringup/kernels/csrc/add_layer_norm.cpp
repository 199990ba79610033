// bringup::add_layer_norm(Tensor x, Tensor residual, Tensor weight, Tensor bias, float eps) ->
// Tensor
//
// LayerNorm over the last dimension of x + residual, in one pass over memory. Mean and variance in
// two passes over the row while it is in cache (Ba, Kiros, Hinton: Layer Normalization, 2016; the
// biased variance, as torch).
#include "bringup/kernel.h"
#include "vec.h"

#ifndef SCALAR
#define SCALAR float
#endif

using namespace bringup_kernels;

namespace {

struct Rows {
  const SCALAR* x;
  const SCALAR* residual;
  const SCALAR* weight;
  const SCALAR* bias;
  SCALAR* out;
  int64_t width;
  SCALAR eps;
};

void normalize_row(const Rows& rows, int64_t row) {
  constexpr int64_t kStep = kLanes<SCALAR>;
  const int64_t width = rows.width;
  const int64_t whole = width - width % kStep;
  const SCALAR* x = rows.x + row * width;
  const SCALAR* residual = rows.residual + row * width;
  SCALAR* out = rows.out + row * width;

  Vec<SCALAR> sums{};
  for (int64_t i = 0; i < whole; i += kStep) {
    const Vec<SCALAR> value = load(x + i) + load(residual + i);
    store(out + i, value);
    sums += value;
  }
  SCALAR total = sum<SCALAR>(sums);
  for (int64_t i = whole; i < width; ++i) total += out[i] = x[i] + residual[i];
  const SCALAR mean = total / static_cast<SCALAR>(width);

  Vec<SCALAR> squares{};
  for (int64_t i = 0; i < whole; i += kStep) {
    const Vec<SCALAR> centred = load(out + i) - mean;
    squares += centred * centred;
  }
  SCALAR spread = sum<SCALAR>(squares);
  for (int64_t i = whole; i < width; ++i) spread += (out[i] - mean) * (out[i] - mean);
  const SCALAR scale =
      1 / static_cast<SCALAR>(__builtin_sqrt(spread / static_cast<SCALAR>(width) + rows.eps));

  for (int64_t i = 0; i < whole; i += kStep) {
    store(out + i, (load(out + i) - mean) * scale * load(rows.weight + i) + load(rows.bias + i));
  }
  for (int64_t i = whole; i < width; ++i) {
    out[i] = (out[i] - mean) * scale * rows.weight[i] + rows.bias[i];
  }
}

}  // namespace

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<const SCALAR> x(args[0]);
  if (x.rank() == 0 || x.size(x.rank() - 1) == 0) {
    return bringup::fail(ctx, "x needs a last dimension of at least 1");
  }
  const int64_t width = x.size(x.rank() - 1);
  const auto data = [args](int i) { return static_cast<SCALAR*>(bringup::tensor(args[i]).data); };
  const Rows rows{
      x.data(), data(1), data(2), data(3), data(5), width, bringup::scalar<SCALAR>(args[4])};
  bringup::parallel_for(ctx, x.numel() / width, 1 + 16384 / width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) normalize_row(rows, row);
  });
  return 0;
}
