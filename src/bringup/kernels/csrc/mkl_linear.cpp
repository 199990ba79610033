// bringup::mkl_linear(Tensor x, Tensor packed, Tensor? bias, int columns, str activation) -> Tensor
//
// activation(x[m, k] times a frozen weight that lies as MKL packs it + bias[n]) -> [m, n], float32.
// The product is MKL's own, on MKL's threads, which are torch's; bias and activation follow in one
// pass over the result.
//
// What MKL packs depends on its address. Behind it are that and the sizes that it was packed for:
// rows of x, n and k.
//
// libtorch_cpu.so contains MKL and exports it; a kernel is linked with neither.
#include <dlfcn.h>

#include "panel_linear.h"

using namespace bringup_kernels;

namespace {

// Of mkl_cblas.h.
enum : int { kRowMajor = 101, kNoTrans = 111, kPacked = 151, kRightMatrix = 162 };
using Compute = void (*)(int layout, int trans_a, int trans_b, int m, int n, int k, const float* a,
                         int lda, const float* b, int ldb, float beta, float* c, int ldc);

Compute find_compute() {
  void* torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (torch == nullptr) return nullptr;
  return reinterpret_cast<Compute>(dlsym(torch, "cblas_sgemm_compute"));
}

// Null, or why a weight is not the one that was packed for these sizes.
const char* refusal(const bringup::View<const uint8_t, 1>& packed, int64_t rows, int64_t columns,
                    int64_t depth) {
  int64_t origin[4];  // address, rows, columns, depth
  const int64_t place = packed.size(0) - static_cast<int64_t>(sizeof(origin));
  if (place < 0) return "packed is not from pack_weight_mkl";
  __builtin_memcpy(origin, packed.data() + place, sizeof(origin));
  if (origin[1] != rows || origin[2] != columns || origin[3] != depth) {
    return "the weight was packed for other sizes";
  }
  if (origin[0] != reinterpret_cast<int64_t>(packed.data())) {
    return "this is a copy of a packed weight, and MKL reads it only where it was packed";
  }
  return nullptr;
}

void finish(const bringup_ctx* ctx, float* out, int64_t rows, int64_t columns, const float* bias,
            Activation activation) {
  bringup::parallel_for(ctx, rows, 1 + 16384 / columns, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* to = out + row * columns;
      for (int64_t i = 0; i < columns; i += kLanes<float>) {
        const int64_t count = smaller(kLanes<float>, columns - i);
        Vec<float> value = load_first(to + i, count);
        if (bias != nullptr) value = value + load_first(bias + i, count);
        store_first(to + i, activated<float>(value, activation), count);
      }
    }
  });
}

}  // namespace

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  static const Compute compute = find_compute();
  if (compute == nullptr) {
    return bringup::fail(ctx, "this build of torch has no MKL that packs weights");
  }
  const bringup::View<const float, 2> x(args[0]);
  const bringup::View<const uint8_t, 1> packed(args[1]);
  Activation activation = Activation::kNone;
  if (!parse_activation(bringup::text(args[4]), &activation)) {
    return bringup::fail(ctx, "activation must be none, relu, gelu, gelu_tanh or silu");
  }
  const float* bias = bringup::is_none(args[2])
                          ? nullptr
                          : static_cast<const float*>(bringup::tensor(args[2]).data);
  const int64_t columns = bringup::scalar<int64_t>(args[3]);
  if (const char* reason = refusal(packed, x.size(0), columns, x.size(1))) {
    return bringup::fail(ctx, reason);
  }
  const int m = static_cast<int>(x.size(0));  // what is packed has sizes that MKL takes
  const int k = static_cast<int>(x.size(1));
  const int n = static_cast<int>(columns);
  auto* out = static_cast<float*>(bringup::tensor(args[5]).data);
  compute(kRowMajor, kNoTrans, kPacked, m, n, k, x.data(), k,
          reinterpret_cast<const float*>(packed.data()), n, 0, out, n);
  if (bias != nullptr || activation != Activation::kNone) finish(ctx, out, m, n, bias, activation);
  return 0;
}
