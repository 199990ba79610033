#include "torch/common/allocation.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <mutex>

namespace bringup::torch_ext {
namespace {

thread_local AllocationTap* t_tap = nullptr;

std::atomic<bool (*)(void*) noexcept> g_raw_release{nullptr};
c10::DeleterFnPtr g_base_raw_deleter = nullptr;

void free_raw(void* address) {
  const auto release = g_raw_release.load(std::memory_order_acquire);
  if (release == nullptr || !release(address)) g_base_raw_deleter(address);
}

class TappedCpuAllocator final : public c10::Allocator {
 public:
  explicit TappedCpuAllocator(c10::Allocator* base) : base_(base) {
    g_base_raw_deleter = base->raw_deleter();
  }

  at::DataPtr allocate(size_t bytes) override {
    if (C10_LIKELY(t_tap == nullptr)) return base_->allocate(bytes);
    return t_tap->allocate(bytes, c10::Device(c10::kCPU), *base_);
  }
  at::DeleterFnPtr raw_deleter() const override { return &free_raw; }
  void copy_data(void* dest, const void* src, size_t count) const override {
    base_->copy_data(dest, src, count);
  }

 private:
  c10::Allocator* base_;
};

}  // namespace

AllocationTap* current_tap() noexcept { return t_tap; }

TapScope::TapScope(AllocationTap* tap) noexcept : former_(t_tap) { t_tap = tap; }
TapScope::~TapScope() { t_tap = former_; }

void set_raw_release(bool (*release)(void* address) noexcept) noexcept {
  g_raw_release.store(release, std::memory_order_release);
}

void install_cpu_allocation_tap() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Never destroyed: tensors may be allocated until the very end of the process.
    static auto* tapped = new TappedCpuAllocator(c10::GetCPUAllocator());
    constexpr uint8_t kAboveTorch = 100;
    c10::SetCPUAllocator(tapped, kAboveTorch);
  });
}

}  // namespace bringup::torch_ext
