// The call context that kernels get on the host, and the thread pool behind parallel_for.
#pragma once

#include <cstdint>

#include "bringup/kernel.h"
#include "runtime/export.h"

namespace bringup::runtime {

using ParallelFor = void (*)(int64_t n, int64_t grain, void (*fn)(int64_t, int64_t, void*), void* user);

// Installs the implementation behind ctx->parallel_for (libtorch's pool once it is there); null = run serially.
BRINGUP_API void set_parallel_for(ParallelFor implementation) noexcept;

// A context for one kernel call on this thread. Building it costs a few stores; workspace taken through it is
// given back to the thread's arena by the destructor.
class BRINGUP_API HostContext {
 public:
  explicit HostContext(DLDevice device = {1, 0}, void* stream = nullptr, int64_t block_index = 0,
                       int64_t block_count = 1) noexcept;
  ~HostContext();
  HostContext(const HostContext&) = delete;
  HostContext& operator=(const HostContext&) = delete;

  const bringup_ctx* get() const noexcept { return &ctx_; }

 private:
  bringup_ctx ctx_;
};

}  // namespace bringup::runtime
