// The numbers of the work that a driver is given, counted as its profiler counts them: so that a
// record of the driver finds the call that gave the work.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <utility>

#include "bringup/driver.h"

namespace bringup::driver {

struct WorkNumber {
  int32_t device;
  bringup_stream stream;
  uint64_t number;

  auto operator<=>(const WorkNumber&) const = default;
};

// What this thread gave a device that records its work, last; none since forget_last_work().
inline thread_local WorkNumber t_last_work{-1, nullptr, 0};
inline std::optional<WorkNumber> last_work() noexcept {
  return t_last_work.device < 0 ? std::nullopt : std::optional(t_last_work);
}
inline void forget_last_work() noexcept { t_last_work.device = -1; }

class WorkNumbers {
 public:
  // `give` gives `stream` one piece of work and returns a status. While the device records, what
  // one stream is given is counted in the order in which the driver gets it.
  template <class Give>
  int32_t count(int32_t device, bringup_stream stream, Give give) {
    const std::shared_lock begun(recordings_);
    if (recording_.count(device) == 0) return give();
    Counter& counter = counter_of(device, stream);
    const std::lock_guard in_order(counter.mutex);
    const int32_t status = give();
    if (status == BRINGUP_OK) t_last_work = {device, stream, counter.next++};
    return status;
  }

  // `start` or `stop` a recording of the device, while nothing gives it work.
  template <class Call>
  int32_t start(int32_t device, Call call) {
    const std::unique_lock alone(recordings_);
    const int32_t status = call();
    if (status != BRINGUP_OK) return status;
    recording_.insert(device);
    const std::lock_guard lock(mutex_);
    std::erase_if(counters_, [&](const auto& entry) { return entry.first.first == device; });
    return status;
  }
  template <class Call>
  int32_t stop(int32_t device, Call call) {
    const std::unique_lock alone(recordings_);
    recording_.erase(device);
    return call();
  }

 private:
  struct Counter {
    std::mutex mutex;
    uint64_t next = 0;
  };

  Counter& counter_of(int32_t device, bringup_stream stream) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Counter>& counter = counters_[{device, stream}];
    if (counter == nullptr) counter = std::make_unique<Counter>();
    return *counter;
  }

  std::shared_mutex recordings_;  // exclusive: one begins or ends
  std::set<int32_t> recording_;
  std::mutex mutex_;  // guards the map
  std::map<std::pair<int32_t, bringup_stream>, std::unique_ptr<Counter>> counters_;
};

}  // namespace bringup::driver
