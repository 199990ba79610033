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

  void record();
  // Waits for the next record. Where it does not come within `limit`, it is not counted when it
  // comes.
  Taken take(std::chrono::nanoseconds limit);
  // Takes the next record without waiting for it.
  void skip();
  // Ends the waits under way, and forgets records that nothing has taken.
  void reset();
  // How many records nothing has taken; negative: how many have to come for waits that are over or
  // under way.
  int64_t ahead() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t records_ = 0;
  uint64_t taken_ = 0;
  uint64_t resets_ = 0;
};

}  // namespace bringup::driver
