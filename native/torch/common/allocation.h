// The allocation interceptor: lets one thread's tensor allocations be recorded, replayed at the
// same addresses or redirected. Both the CPU allocator wrapper and the driver's device allocator
// ask it first.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

namespace bringup::torch_ext {

// Installed on one thread for a while; sees every allocation of that thread.
class AllocationInterceptor {
 public:
  virtual ~AllocationInterceptor() = default;
  // `base` is the allocator that would have served the request for `device`.
  virtual at::DataPtr allocate(size_t bytes, c10::Device device, c10::Allocator& base) = 0;
};

// This thread's interceptor, or null. A plain thread_local: reading it costs one load.
AllocationInterceptor* current_interceptor() noexcept;

// Installs an interceptor for the scope of this object and puts the former one back.
class InterceptorScope {
 public:
  explicit InterceptorScope(AllocationInterceptor* interceptor) noexcept;
  ~InterceptorScope();
  InterceptorScope& operator=(InterceptorScope&&) = delete;

 private:
  AllocationInterceptor* former_;
};

// Some libraries (oneDNN) take bare pointers from the CPU allocator and free them by address. So
// the context of CPU memory that an interceptor gives has to be its address, and each kind of
// interceptor adds a function that frees an address if it was given by such an interceptor, and
// says whether it was. Adding one again changes nothing.
using RawRelease = bool (*)(void* address) noexcept;
void add_raw_release(RawRelease release);

// Fills what was allocated as torch.empty does under torch.use_deterministic_algorithms.
void fill_deterministic(at::Tensor& tensor);
inline at::Tensor filled_if_deterministic(at::Tensor tensor) {
  if (C10_UNLIKELY(at::globalContext().deterministicAlgorithms())) fill_deterministic(tensor);
  return tensor;
}

// Puts the wrapper before torch's CPU allocator; idempotent, thread-safe, and never undone (live
// tensors keep their own deleters, so this is safe at any time). Costs one thread-local load an
// allocation.
void install_cpu_allocation_interceptor();

}  // namespace bringup::torch_ext
