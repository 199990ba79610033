// Calls a shipped kernel (bias_gelu, float) from a library, without torch: `caller LIBRARY ENTRY`.
// Ends with 0 where the results are those of the C library's erf.
#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "bringup/kernel.h"

namespace {

constexpr int64_t kRows = 5, kWidth = 37;  // 37: a part of a vector is left

DLTensor tensor(std::vector<float>& data, std::vector<int64_t>& shape,
                std::vector<int64_t>& strides) {
  const auto rank = static_cast<int32_t>(shape.size());
  return {data.data(), {1, 0}, rank, {2, 32, 1}, shape.data(), strides.data(), 0};
}

void set_error(const bringup_ctx*, const char* message) { std::fprintf(stderr, "%s\n", message); }

void parallel_for(const bringup_ctx*, int64_t n, int64_t, void (*body)(int64_t, int64_t, void*),
                  void* user) {
  body(0, n, user);
}

}  // namespace

int main(int count, char** words) {
  void* library = count == 3 ? dlopen(words[1], RTLD_NOW) : nullptr;
  void* symbol = library != nullptr ? dlsym(library, words[2]) : nullptr;
  if (symbol == nullptr) return std::fprintf(stderr, "no kernel: %s\n", dlerror()), 1;
  std::vector<float> x(kRows * kWidth), bias(kWidth), out(kRows * kWidth, NAN);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 0.05f * static_cast<float>(i) - 4;
  for (size_t i = 0; i < bias.size(); ++i) bias[i] = 0.01f * static_cast<float>(i);
  std::vector<int64_t> shape{kRows, kWidth}, strides{kWidth, 1}, length{kWidth}, one{1};
  DLTensor tensors[] = {tensor(x, shape, strides), tensor(bias, length, one),
                        tensor(out, shape, strides)};
  void* args[] = {&tensors[0], &tensors[1], &tensors[2]};
  bringup_ctx ctx{};
  ctx.struct_size = sizeof ctx;
  ctx.abi_version = BRINGUP_KERNEL_ABI;
  ctx.device = {1, 0};
  ctx.block_count = 1;
  ctx.set_error = set_error;
  ctx.parallel_for = parallel_for;
  if (reinterpret_cast<bringup_kernel_fn>(symbol)(args, 3, &ctx) != 0) return 1;
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = static_cast<double>(x[i]) + static_cast<double>(bias[i % kWidth]);
    const double expected = 0.5 * at * (1 + std::erf(at / std::sqrt(2.0)));
    worst = std::fmax(worst, std::fabs(static_cast<double>(out[i]) - expected));
  }
  std::printf("largest difference %.1e\n", worst);
  return worst < 2e-6 ? 0 : 1;  // false for NaN, too
}
