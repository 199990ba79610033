// The allocation tap: lets one thread's tensor allocations be recorded, replayed at the same
// addresses or redirected. Both the CPU allocator wrapper and the driver's device allocator ask it
// first.
#pragma once

#include <c10/core/Allocator.h>

namespace bringup::torch_ext {

// Installed on one thread for a while; sees every allocation of that thread.
class AllocationTap {
 public:
  virtual ~AllocationTap() = default;
  // `base` is the allocator that would have served the request for `device`.
  virtual at::DataPtr allocate(size_t bytes, c10::Device device, c10::Allocator& base) = 0;
};

// This thread's tap, or null. A plain thread_local: reading it costs one load.
AllocationTap* current_tap() noexcept;

// Installs a tap for the scope of this object and puts the former one back.
class TapScope {
 public:
  explicit TapScope(AllocationTap* tap) noexcept;
  ~TapScope();
  TapScope(const TapScope&) = delete;
  TapScope& operator=(const TapScope&) = delete;

 private:
  AllocationTap* former_;
};

// Some libraries (oneDNN) take bare pointers from the CPU allocator and free them by address. So
// the context of CPU memory that a tap gives has to be its address, and each kind of tap adds a
// function that frees an address if it was given by such a tap, and says whether it was. Adding one
// again changes nothing.
using RawRelease = bool (*)(void* address) noexcept;
void add_raw_release(RawRelease release);

// Puts the wrapper before torch's CPU allocator; idempotent, thread-safe, and never undone (live
// tensors keep their own deleters, so this is safe at any time). Costs one thread-local load an
// allocation.
void install_cpu_allocation_tap();

}  // namespace bringup::torch_ext
