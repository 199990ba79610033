// Limits for what may take for ever: waits that end with an error, and a watchdog that tells which
// call of the driver has not returned.
#pragma once

#include <chrono>
#include <cstdint>

namespace bringup::driver {

using Clock = std::chrono::steady_clock;

// `seconds` 0: no limit and no watchdog. `abort`: a call that has not returned for that long ends
// the process, after a report.
void set_wait_limit(double seconds, bool abort);
std::chrono::nanoseconds wait_limit() noexcept;  // zero: none

// One call of the driver, while it lasts. Nothing where there is no limit.
class WatchedCall {
 public:
  WatchedCall(const char* function, int32_t device, const void* stream,
              const char* name = nullptr) {
    if (wait_limit().count() != 0) begin(function, device, stream, name);
  }
  WatchedCall& operator=(WatchedCall&&) = delete;
  ~WatchedCall() {
    if (slot_ != nullptr) end();
  }

  struct Slot;

 private:
  void begin(const char* function, int32_t device, const void* stream, const char* name);
  void end();

  Slot* slot_ = nullptr;
};

void pause_between_queries(int& asked);

// Asks `query` (false: not yet) until it says true or the limit is over; false then.
template <class Query>
bool wait_until(Query query) {
  const auto deadline = Clock::now() + wait_limit();
  int asked = 0;
  while (!query()) {
    if (Clock::now() > deadline) return false;
    pause_between_queries(asked);
  }
  return true;
}

}  // namespace bringup::driver
