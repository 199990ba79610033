#include "torch/common/allocation.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/TensorFactories.h>
#include <c10/core/CPUAllocator.h>

#include <array>
#include <atomic>
#include <mutex>

namespace bringup::torch_ext {
namespace {

thread_local AllocationInterceptor* t_interceptor = nullptr;

// One for each kind of interceptor; a slot is written once and never cleared.
std::array<std::atomic<RawRelease>, 4> g_raw_releases{};
c10::DeleterFnPtr g_base_raw_deleter = nullptr;

void free_raw(void* address) {
  for (const auto& slot : g_raw_releases) {
    const RawRelease release = slot.load(std::memory_order_acquire);
    if (release == nullptr) break;
    if (release(address)) return;
  }
  g_base_raw_deleter(address);
}

class InterceptedCpuAllocator final : public c10::Allocator {
 public:
  explicit InterceptedCpuAllocator(c10::Allocator* base) : base_(base) {}

  at::DataPtr allocate(size_t bytes) override {
    if (C10_LIKELY(t_interceptor == nullptr)) return base_->allocate(bytes);
    return t_interceptor->allocate(bytes, c10::Device(c10::kCPU), *base_);
  }
  at::DeleterFnPtr raw_deleter() const override { return &free_raw; }
  void copy_data(void* dest, const void* src, size_t count) const override {
    base_->copy_data(dest, src, count);
  }

 private:
  c10::Allocator* base_;
};

}  // namespace

AllocationInterceptor* current_interceptor() noexcept { return t_interceptor; }

InterceptorScope::InterceptorScope(AllocationInterceptor* interceptor) noexcept
    : former_(t_interceptor) {
  t_interceptor = interceptor;
}
InterceptorScope::~InterceptorScope() { t_interceptor = former_; }

void fill_deterministic(at::Tensor& tensor) {
  if (!at::globalContext().deterministicFillUninitializedMemory()) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::native::fill_empty_deterministic_(tensor);
}

void add_raw_release(RawRelease release) {
  for (auto& slot : g_raw_releases) {
    RawRelease present = nullptr;
    if (slot.compare_exchange_strong(present, release) || present == release) return;
  }
  TORCH_INTERNAL_ASSERT(false,
                        "there are more kinds of allocation interceptors than slots for them");
}

void install_cpu_allocation_interceptor() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::Allocator* base = c10::GetCPUAllocator();
    g_base_raw_deleter = base->raw_deleter();
    // Never destroyed: tensors may be allocated until the very end of the process.
    static auto* intercepted = new InterceptedCpuAllocator(base);
    constexpr uint8_t kAboveTorch = 100;
    c10::SetCPUAllocator(intercepted, kAboveTorch);
  });
}

}  // namespace bringup::torch_ext
