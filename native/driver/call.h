// What the checks of this folder share: the driver behind them, one call of it, and the words for
// what went wrong.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "bringup/driver.h"
#include "driver/faults.h"
#include "driver/live_handles.h"
#include "driver/time_limits.h"
#include "driver/work_numbers.h"
#include "engine/util/concat.h"

namespace bringup::driver {

struct State {
  std::mutex mutex;                                           // guards tables
  std::vector<std::unique_ptr<const bringup_driver>> tables;  // a call may still be in one
  std::atomic<const bringup_driver*> real{nullptr};
  std::atomic<const bringup_driver*> stopped{nullptr};  // what stands for it after shutdown
  std::atomic<bool> has_timing{true};                   // the driver has event_elapsed
  std::atomic<bool> counts_work{false};                 // it has no stream_query
  std::atomic<bool> counts_memory{false};               // it has no mem_info
  std::atomic<int32_t> device_count{0};
  std::atomic<bool> ending{false};  // failures of what gives back are expected now
  Segments segments;
  Handles streams;
  Handles events;
  Handles graphs;
  Handles comms;
  Modules modules;
  WorkNumbers work;
  Faults faults;
};

State& state();

// The driver's functions, with substitutes for what it has not.
inline const bringup_driver& real() { return *state().real.load(std::memory_order_acquire); }

// This thread's own words for its last call, in place of the driver's; empty: the driver's stand.
// Plain memory, because threads make calls while they end.
constexpr size_t kWords = 512;
char* words() noexcept;

// The detail that goes with words().
const bringup_error_detail& kept_detail() noexcept;

// A failure in our words.
int32_t fail(int32_t status, const std::string& what);
template <class... Parts>
int32_t fail(int32_t status, const Parts&... parts) {
  return fail(status, concat(parts...));
}
// A failure because the driver breaks its contract.
template <class... Parts>
int32_t broken(const char* function, const Parts&... parts) {
  return fail(BRINGUP_ERROR, "the driver breaks the contract of bringup/driver.h: ", function, " ",
              parts...);
}
int32_t too_long(const char* function, const std::string& what);
// A module was loaded, if the status says so.
int32_t loaded(const char* function, int32_t status, void* module);
// The failure of a call before the last one, whose words and detail would be gone otherwise.
void keep_words();

// One call: forgets the words of the former, and is watched.
struct Call : WatchedCall {
  Call(const char* function, int32_t device = -1, const void* stream = nullptr,
       const char* name = nullptr)
      : WatchedCall(function, device, stream, name) {
    words()[0] = '\0';
  }
};

// `status`, or BRINGUP_ERROR where the function cannot return it.
int32_t known(const char* function, int32_t status, bool is_query = false);

// Calls after which `bytes` at *address are live, and before which they are not any more: another
// thread may get the memory right after it.
template <class Entry>
int32_t memory_from(const char* function, size_t bytes, int32_t device, void** address,
                    Entry entry) {
  *address = nullptr;
  const int32_t status = known(function, entry());
  if (status != BRINGUP_OK) return status;
  if (const auto why = state().segments.add(device, *address, bytes)) return broken(function, *why);
  return status;
}
inline int32_t memory_back(const char* function, int32_t device, void* address,
                           int32_t (*entry)(int32_t, void*)) {
  const Call call(function, device);
  const size_t bytes = state().segments.remove(device, address);
  const int32_t status = known(function, entry(device, address));
  if (status != BRINGUP_OK) state().segments.restore(device, address, bytes);
  return status;
}

// The checked form of a function of which there is nothing to check but its status.
#define BRINGUP_STATUS_ONLY(name)                          \
  constexpr auto name = [](auto... arguments) -> int32_t { \
    const Call call(#name);                                \
    return known(#name, real().name(arguments...));        \
  };

// Work was given to a stream.
void count_work(int32_t device, bringup_stream stream);
inline void gave(int32_t device, bringup_stream stream) {
  if (state().counts_work.load(std::memory_order_relaxed)) count_work(device, stream);
}

// A call that gives a stream one piece of work, of which the driver may keep a record.
template <class Give>
int32_t give_work(const char* function, int32_t device, bringup_stream stream, Give give) {
  gave(device, stream);
  const auto call = [&] { return known(function, give()); };
  if (real().profiler_start == nullptr) return call();
  return state().work.count(device, stream, call);
}

template <size_t kSize>
bool ends(const char (&text)[kSize]) {
  return std::char_traits<char>::find(text, kSize, '\0') != nullptr;
}

// A structure of the caller, which the driver fills: it finds `Struct::struct_size` set and may
// write no further.
template <class Struct>
struct Given {
  Struct value{};
  unsigned char behind[64];

  Given() {
    value.struct_size = sizeof value;
    for (unsigned char& byte : behind) byte = 0x5a;
  }
  bool is_intact() const {
    for (const unsigned char byte : behind) {
      if (byte != 0x5a) return false;
    }
    return true;
  }
  // As much as the caller knows.
  void copy_to(Struct* target) const {
    const uint32_t known_bytes = target->struct_size;
    std::char_traits<char>::copy(reinterpret_cast<char*>(target),
                                 reinterpret_cast<const char*>(&value),
                                 std::min<size_t>(known_bytes, sizeof value));
    target->struct_size = known_bytes;
  }
};

// Puts functions made of the required ones where the driver has none.
void complete(bringup_driver& driver);
// Puts the checks of the capability groups into the checked table.
void check_groups(const bringup_driver& driver, bringup_driver& table);
// What answers once the driver was shut down.
bringup_driver stopped(const bringup_driver& driver);

}  // namespace bringup::driver
