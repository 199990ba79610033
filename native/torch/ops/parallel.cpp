// The one file compiled with OpenMP, as at::parallel_for is a template over its pragmas. It runs on
// the OpenMP library that libtorch has loaded (CMakeLists.txt).
#include "torch/ops/parallel.h"

#include <ATen/Parallel.h>
#include <pthread.h>

#include <atomic>

#include "runtime/context.h"

#if AT_PARALLEL_OPENMP && !defined(_OPENMP)
#error "compile this file with OpenMP, as libtorch is: at::parallel_for is serial without it"
#endif

namespace bringup::torch_ext {
namespace {

std::atomic<bool> g_forked{false};

void parallel_for(int64_t n, int64_t grain, void (*fn)(int64_t, int64_t, void*), void* user) {
  // A forked child has the pool of its parent on paper and none of its threads: it would wait for
  // them for ever.
  if (g_forked.load(std::memory_order_relaxed)) return fn(0, n, user);
  at::parallel_for(0, n, grain, [fn, user](int64_t begin, int64_t end) { fn(begin, end, user); });
}

}  // namespace

void install_parallel_for() {
  pthread_atfork(nullptr, nullptr, [] { g_forked = true; });
  runtime::set_parallel_for(&parallel_for);
}

}  // namespace bringup::torch_ext
