#include "torch/devices/memory_history.h"

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>

namespace bringup::torch_ext {
namespace {

struct History {
  std::atomic<bool> on{false};
  std::mutex mutex;  // for what follows
  size_t most = 0;
  std::deque<MemoryEvent> events;
};

History& history() {
  static auto* one = new History;  // tensors may be freed at the very end
  return *one;
}

}  // namespace

bool records_memory_history() noexcept { return history().on.load(std::memory_order_relaxed); }

void record_memory_history(std::optional<size_t> most) {
  History& now = history();
  const std::lock_guard lock(now.mutex);
  now.events.clear();
  now.most = most.value_or(0);
  now.on = most.has_value();
}

std::vector<MemoryEvent> memory_history() {
  History& now = history();
  const std::lock_guard lock(now.mutex);
  return {now.events.begin(), now.events.end()};
}

void note_memory(bool is_allocation, c10::DeviceIndex device, int64_t stream, const void* address,
                 size_t bytes) {
  const auto time = std::chrono::system_clock::now().time_since_epoch();
  History& now = history();
  const std::lock_guard lock(now.mutex);
  if (!now.on || now.most == 0) return;
  if (now.events.size() == now.most) now.events.pop_front();
  now.events.push_back({is_allocation, device, stream, address, bytes,
                        std::chrono::duration_cast<std::chrono::microseconds>(time).count()});
}

}  // namespace bringup::torch_ext
