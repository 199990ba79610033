// Stream priorities of one device: a stream begins no work while a more urgent one has work that
// could run.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>

namespace bringup::sim {

// As in CUDA: lower is more urgent.
inline constexpr int32_t kGreatestPriority = -2;
inline constexpr int32_t kLeastPriority = 0;

class Turns {
 public:
  // A stream of this priority has work that waits for nothing; or no longer.
  void announce(int32_t priority) {
    std::lock_guard lock(mutex_);
    ++ready_[priority];
    announced_.fetch_add(1);
  }
  void withdraw(int32_t priority) {
    {
      std::lock_guard lock(mutex_);
      --ready_[priority];
      announced_.fetch_sub(1);
    }
    changed_.notify_all();
  }
  // Whether any stream has announced such work.
  bool any_urgent() const { return announced_.load(std::memory_order_acquire) != 0; }
  // Returns when no more urgent stream has such work, or one of the flags is set and wake() was
  // called. Work that runs already is not interrupted.
  void await(int32_t priority, const std::atomic<bool>& dropping,
             const std::atomic<bool>& resetting) {
    if (!any_urgent()) return;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return dropping.load() || resetting.load() || is_turn(priority); });
  }
  // Lets every wait look at its flag.
  void wake() {
    // Under the lock: a wait between its look and its sleep would miss it.
    std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

 private:
  bool is_turn(int32_t priority) const {
    for (const auto& [other, streams] : ready_) {
      if (other < priority && streams > 0) return false;
    }
    return true;
  }

  std::atomic<int> announced_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int32_t, int> ready_;  // streams, by priority
};

}  // namespace bringup::sim
