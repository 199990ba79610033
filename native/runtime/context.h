// The call context that kernels get on the host, and the thread pool behind parallel_for.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "bringup/kernel.h"
#include "runtime/export.h"

namespace bringup::runtime {

using ParallelFor = void (*)(int64_t n, int64_t grain, void (*fn)(int64_t, int64_t, void*),
                             void* user);

// Installs what is behind ctx->parallel_for (libtorch's pool); null: run serially.
BRINGUP_API void set_parallel_for(ParallelFor implementation) noexcept;

// DLPack's numbers of kinds of devices: the cpu, CUDA's, a driver's.
inline constexpr int32_t kDlCpu = 1, kDlCuda = 2, kDlExtDev = 12;

using NativeHandle = int32_t (*)(DLDevice device, void* stream, int32_t kind, void** handle);

// Installs what is behind ctx->native_handle (a driver's); null: there are no native objects.
BRINGUP_API void set_native_handle(NativeHandle implementation) noexcept;

// Where scratch memory comes from that is not the host's: given back by the maker of the source.
class WorkspaceSource {
 public:
  // At least `bytes`, 64-byte aligned, or null when there is none left. Any thread may ask.
  virtual void* take(size_t bytes) noexcept = 0;

 protected:
  ~WorkspaceSource() = default;
};

// A context for kernel calls on this thread, one after the other; cheap to build. Contexts nest
// like their calls: the destructor gives back the workspace taken through one. A kernel's own
// threads (parallel_for) may use it: what they say reaches the slot of the thread that built it.
class BRINGUP_API HostContext {
 public:
  explicit HostContext(DLDevice device = {1, 0}, void* stream = nullptr, int64_t block_index = 0,
                       int64_t block_count = 1, WorkspaceSource* workspace = nullptr) noexcept;
  ~HostContext();
  HostContext& operator=(HostContext&&) = delete;

  const bringup_ctx* get() const noexcept { return &ctx_; }

  // After a call, on the thread that built it: gives back its workspace for another context.
  void end_call() noexcept {
    if (has_workspace_ || foreign_.load(std::memory_order_relaxed) != nullptr) give_back();
  }

 private:
  struct Region;  // scratch memory of another thread

  static void set_error(const bringup_ctx* ctx, const char* message);
  static void* workspace(const bringup_ctx* ctx, size_t bytes);
  void give_back() noexcept;
  void* own_workspace(size_t bytes) noexcept;
  void* foreign_workspace(size_t bytes) noexcept;

  bringup_ctx ctx_;
  std::string* error_slot_;  // of the thread that built this; also says which thread that is
  WorkspaceSource* source_;  // null: this thread's arena
  std::atomic<Region*> foreign_{nullptr};
  size_t first_chunk_ = 0;  // where this call's part of the thread's arena begins, once it has one
  size_t first_used_ = 0;
  bool has_workspace_ = false;
};

}  // namespace bringup::runtime
