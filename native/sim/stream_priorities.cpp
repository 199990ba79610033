#include "sim/stream_priorities.h"

namespace bringup::sim {

void Turns::announce(int32_t priority) {
  std::lock_guard lock(mutex_);
  ++ready_[priority];
  announced_.fetch_add(1);
}

void Turns::withdraw(int32_t priority) {
  {
    std::lock_guard lock(mutex_);
    --ready_[priority];
    announced_.fetch_sub(1);
  }
  changed_.notify_all();
}

bool Turns::is_turn(int32_t priority) const {
  for (const auto& [other, streams] : ready_) {
    if (other < priority && streams > 0) return false;
  }
  return true;
}

void Turns::await(int32_t priority, const std::atomic<bool>& dropping,
                  const std::atomic<bool>& resetting) {
  if (!any_urgent()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return dropping.load() || resetting.load() || is_turn(priority); });
}

void Turns::wake() {
  // Under the lock: a wait between its look and its sleep would miss it.
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

}  // namespace bringup::sim
