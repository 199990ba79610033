// The simulator as a whole: its settings, its devices, their streams, and its end.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bringup/driver.h"
#include "sim/device_memory.h"
#include "sim/stream.h"

namespace bringup::sim {

inline constexpr int32_t kDeviceCount = 2;

// Read from the environment once, when the simulator starts.
struct SimSettings {
  size_t memory_bytes;  // BRINGUP_SIM_MEMORY: bytes a device, with an optional K, M or G; 4G by
                        // default
  bool isolated;        // BRINGUP_SIM_ISOLATED: 1 makes device memory unreachable for the host
  std::string faults;   // BRINGUP_SIM_FAULTS: docs/devices/faults.md
  size_t records;       // BRINGUP_SIM_RECORDS: that a device keeps for the profiler
  std::string archs;    // BRINGUP_SIM_ARCHS: what compilers call each device; sim-1 by default
  bool host_code;       // BRINGUP_SIM_HOST_CODE: whether it says that it runs the host's code
};

class Simulator {
 public:
  // Started by the first call. Throws SimError for a setting that cannot be read, in a forked
  // child, and after the end of main.
  static Simulator& instance();

  DeviceMemory& memory(int32_t device);
  // What compilers call the device.
  const std::string& arch(int32_t device) { return this->device(device).arch; }
  bool runs_host_code() const { return runs_host_code_; }
  WorkLog& work_log(int32_t device);
  // The device's default stream for null.
  std::shared_ptr<Stream> stream(int32_t device, bringup_stream handle);
  bringup_stream create_stream(int32_t device, int32_t priority);
  void destroy_stream(bringup_stream handle);
  void synchronize(int32_t device);
  // Drops pending work of the device and forgets failures. A kernel that runs is waited for.
  void reset(int32_t device);
  // Streams look again whether they may put their work off.
  void wake_streams();
  // The device whose memory holds this address; null when none does.
  DeviceMemory* memory_of(const void* address);

  // The worker's address of a range that must lie in one allocation of a device.
  std::byte* range(const void* address, size_t bytes, const char* role);

  void shut_down();

 private:
  struct Device {
    explicit Device(const SimSettings& settings)
        : memory(settings.memory_bytes, settings.isolated), log(settings.records) {}
    DeviceMemory memory;
    Turns turns;
    WorkLog log;
    std::string arch;
    std::shared_ptr<Stream> default_stream;
    std::vector<std::shared_ptr<Stream>> streams;
  };

  explicit Simulator(const SimSettings& settings);
  static Simulator& start();
  Device& device(int32_t index);
  std::vector<std::shared_ptr<Stream>> streams_of(int32_t index);

  std::array<std::unique_ptr<Device>, kDeviceCount> devices_;
  bool runs_host_code_ = true;
  std::mutex mutex_;  // guards the stream lists
  int next_stream_number_ = 1;
};

inline Simulator& simulator() { return Simulator::instance(); }

}  // namespace bringup::sim
