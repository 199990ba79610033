#include "driver/time_limits.h"

#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/util/forever.h"

namespace bringup::driver {

// Of one call; reused by later ones, never freed.
struct WatchedCall::Slot {
  std::atomic<bool> taken{false};
  std::atomic<int64_t> begun{0};  // nanoseconds of Clock; 0: no call
  std::mutex mutex;               // for what follows
  const char* function = nullptr;
  std::string name;  // of an operator, a function
  int32_t device = 0;
  const void* stream = nullptr;
  int64_t told = 0;  // the begin of the last call that was reported
};

namespace {

struct Watchdog {
  std::atomic<int64_t> limit{0};
  std::atomic<bool> abort{false};
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<WatchedCall::Slot*> slots;
  bool runs = false;
};

Watchdog& watchdog() { return forever<Watchdog>(); }

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

void tell(const WatchedCall::Slot& slot, int64_t begun) {
  const std::string of = slot.name.empty() ? "" : " for '" + slot.name + "'";
  std::fprintf(
      stderr,
      "bringup: the driver's %s%s has not returned for %.1f s (device %d, stream %p). "
      "BRINGUP_WAIT_TIMEOUT sets when this is reported; BRINGUP_WAIT_ABORT=1 ends the process\n",
      slot.function, of.c_str(), static_cast<double>(now() - begun) / 1e9, slot.device,
      slot.stream);
  std::fflush(stderr);
}

void watch() {
  Watchdog& all = watchdog();
  std::unique_lock lock(all.mutex);
  while (true) {
    const int64_t limit = all.limit.load();
    if (limit == 0) {
      all.changed.wait(lock);
      continue;
    }
    all.changed.wait_for(lock, std::chrono::nanoseconds(std::max<int64_t>(limit / 4, 1'000'000)));
    for (WatchedCall::Slot* slot : all.slots) {
      const int64_t begun = slot->begun.load();
      if (begun == 0 || now() - begun < limit) continue;
      const std::lock_guard reading(slot->mutex);
      if (slot->begun.load() != begun || slot->told == begun) continue;
      slot->told = begun;
      tell(*slot, begun);
      if (all.abort.load()) std::abort();
    }
  }
}

WatchedCall::Slot* take_slot() {
  Watchdog& all = watchdog();
  const std::lock_guard lock(all.mutex);
  for (WatchedCall::Slot* slot : all.slots) {
    if (!slot->taken.exchange(true)) return slot;
  }
  all.slots.push_back(new WatchedCall::Slot);
  all.slots.back()->taken = true;
  return all.slots.back();
}

}  // namespace

void set_wait_limit(double seconds, bool abort) {
  Watchdog& all = watchdog();
  const std::lock_guard lock(all.mutex);
  all.limit = static_cast<int64_t>(seconds * 1e9);
  all.abort = abort;
  if (seconds > 0 && !all.runs) {
    std::thread(watch).detach();
    all.runs = true;
  }
  all.changed.notify_all();
}

std::chrono::nanoseconds wait_limit() noexcept {
  return std::chrono::nanoseconds(watchdog().limit.load(std::memory_order_relaxed));
}

// Calls of one thread may lie inside each other (a release function that frees memory), so each has
// a slot of its own.
void WatchedCall::begin(const char* function, int32_t device, const void* stream,
                        const char* name) {
  slot_ = take_slot();
  const std::lock_guard lock(slot_->mutex);
  slot_->function = function;
  slot_->device = device;
  slot_->stream = stream;
  slot_->name = name != nullptr ? name : "";
  slot_->begun = now();
}

void WatchedCall::end() {
  const std::lock_guard lock(slot_->mutex);
  slot_->begun = 0;
  slot_->taken = false;
}

void pause_between_queries(int& asked) {
  constexpr int kYields = 200;
  if (asked++ < kYields) {
    sched_yield();
    return;
  }
  const int doubled = std::min((asked - kYields) / 8, 5);
  std::this_thread::sleep_for(std::chrono::microseconds(50) * (1 << doubled));
}

}  // namespace bringup::driver
