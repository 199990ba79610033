#include "driver/host_event.h"

namespace bringup::driver {

void HostEvent::record() {
  {
    const std::lock_guard lock(mutex_);
    ++records_;
  }
  changed_.notify_all();
}

HostEvent::Taken HostEvent::take(std::chrono::nanoseconds limit) {
  std::unique_lock lock(mutex_);
  const uint64_t number = ++taken_;
  const uint64_t resets = resets_;
  const bool over =
      changed_.wait_for(lock, limit, [&] { return resets_ != resets || records_ >= number; });
  if (resets_ != resets) return Taken::kReset;
  return over ? Taken::kYes : Taken::kTooLate;
}

void HostEvent::skip() {
  const std::lock_guard lock(mutex_);
  ++taken_;
}

void HostEvent::reset() {
  {
    const std::lock_guard lock(mutex_);
    records_ = taken_ = 0;
    ++resets_;
  }
  changed_.notify_all();
}

int64_t HostEvent::ahead() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(records_ - taken_);
}

}  // namespace bringup::driver
