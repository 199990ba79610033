// A launch with plain values, as the device keeps it until it runs: everything is copied and
// checked when it is given.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "bringup/driver.h"
#include "grid/grid_run.h"
#include "sim/device_memory.h"
#include "sim/kernel_run.h"

namespace bringup::sim {

// CUDA's, so that what runs here is not refused there.
inline constexpr uint32_t kMaxGrid[3] = {0x7fffffff, 65535, 65535};
inline constexpr uint32_t kMaxBlock[3] = {1024, 1024, 64};
inline constexpr uint32_t kMaxBlockThreads = 1024;
inline constexpr uint32_t kMaxSharedBytes = 48 << 10;

class ValuesLaunch {
 public:
  // Throws SimError for a launch beyond the device's limits, for values of no known kind or size,
  // and for an address outside `memory`.
  ValuesLaunch(const bringup_launch_values_args& launch, const DeviceMemory& memory);

  const std::string& name() const noexcept { return name_; }
  // Whether its threads wait for nothing.
  bool is_independent() const noexcept { return run_.independent; }
  std::optional<Failure> run(const Place& place) const;

 private:
  std::string name_;
  grid::GridRun run_;
};

}  // namespace bringup::sim
