// Running one kernel launch on a worker: its blocks, their contexts, and the translation of
// isolated addresses.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "bringup/driver.h"
#include "sim/device_memory.h"
#include "sim/status.h"

namespace bringup::sim {

// Callers may know fewer fields; those are 0.
bringup_launch read_launch(const bringup_launch& launch) noexcept;

// A launch that is released exactly once, when its last holder lets go.
class OwnedLaunch {
 public:
  explicit OwnedLaunch(const bringup_launch& launch) : launch_(read_launch(launch)) {}
  OwnedLaunch(OwnedLaunch&& other) noexcept
      : launch_(other.launch_), armed_(std::exchange(other.armed_, false)) {}
  OwnedLaunch& operator=(OwnedLaunch&&) = delete;
  ~OwnedLaunch() {
    if (armed_ && launch_.release != nullptr) launch_.release(launch_.owner);
  }

  const bringup_launch& get() const noexcept { return launch_; }

 private:
  bringup_launch launch_;
  bool armed_ = true;
};

// Where a kernel runs.
struct Place {
  int32_t device = 0;
  int stream_number = 0;
  void* native_stream = nullptr;
  const DeviceMemory* memory = nullptr;
};

// What went wrong in a piece of work, in words that name the operator and the stream.
struct Failure {
  std::string text;
  ErrorDetail detail;
};

// Of operator `name`; `what` happened, with the kernel's own number and further words.
Failure failure_of(const char* name, const Place& place, const std::string& what, int64_t code = 0,
                   std::string text = {});

// Whether it waits for nothing and its tensors have so few bytes that running it takes no longer
// than waking another thread would.
bool is_short_launch(const bringup_launch& launch) noexcept;

// Runs every block of the grid, one after the other. Returns what went wrong, or nothing.
std::optional<Failure> run_launch(const bringup_launch& launch, const Place& place);

}  // namespace bringup::sim
