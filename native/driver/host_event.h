// Records that waits take one by one: an order between threads, and between streams and the host.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace bringup::driver {

// The n-th wait takes the n-th record, whichever comes first, so that none is lost.
class HostEvent {
 public:
  enum class Taken : uint8_t { kYes, kTooLate, kReset };

  void record() {
    {
      const std::lock_guard lock(mutex_);
      ++records_;
    }
    changed_.notify_all();
  }
  // Waits for the next record. Where it does not come within `limit`, it is not counted when it
  // comes.
  Taken take(std::chrono::nanoseconds limit) {
    std::unique_lock lock(mutex_);
    const uint64_t number = ++taken_;
    const uint64_t resets = resets_;
    const bool over =
        changed_.wait_for(lock, limit, [&] { return resets_ != resets || records_ >= number; });
    if (resets_ != resets) return Taken::kReset;
    return over ? Taken::kYes : Taken::kTooLate;
  }
  // Takes the next record without waiting for it.
  void skip() {
    const std::lock_guard lock(mutex_);
    ++taken_;
  }
  // Ends the waits under way, and forgets records that nothing has taken.
  void reset() {
    {
      const std::lock_guard lock(mutex_);
      records_ = taken_ = 0;
      ++resets_;
    }
    changed_.notify_all();
  }
  // How many records nothing has taken; negative: how many have to come for waits that are over or
  // under way.
  int64_t ahead() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(records_ - taken_);
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t records_ = 0;
  uint64_t taken_ = 0;
  uint64_t resets_ = 0;
};

}  // namespace bringup::driver
