#include "driver/work_numbers.h"

namespace bringup::driver {
namespace {

thread_local WorkNumber t_last{-1, nullptr, 0};

}  // namespace

std::optional<WorkNumber> last_work() noexcept {
  return t_last.device < 0 ? std::nullopt : std::optional(t_last);
}

void forget_last_work() noexcept { t_last.device = -1; }

void WorkNumbers::remember(const WorkNumber& number) noexcept { t_last = number; }

WorkNumbers::Counter& WorkNumbers::counter_of(int32_t device, bringup_stream stream) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Counter>& counter = counters_[{device, stream}];
  if (counter == nullptr) counter = std::make_unique<Counter>();
  return *counter;
}

void WorkNumbers::begin(int32_t device) {
  recording_.insert(device);
  const std::lock_guard lock(mutex_);
  std::erase_if(counters_, [&](const auto& entry) { return entry.first.first == device; });
}

}  // namespace bringup::driver
