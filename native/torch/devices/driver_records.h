// The driver's own records of a device's work, for a profile: which devices keep them, and the rows
// that they belong to.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "driver/work_numbers.h"
#include "torch/devices/profiler.h"
#include "torch/devices/state.h"

namespace bringup::torch_ext {

class DriverRecords {
 public:
  // What was read once the recording had ended.
  class Times {
   public:
    // Gives the row the times of its record. False, with an error, when there is none.
    bool take(ProfiledRow& row, std::vector<std::string>& errors);
    // A row for each record of work that no row tells of.
    void add_others(std::vector<std::unique_ptr<ProfiledRow>>& rows,
                    const std::function<int32_t(const driver::WorkNumber&)>& stream_number);

   private:
    friend class DriverRecords;
    std::map<driver::WorkNumber, bringup_record> records_;
    std::array<uint64_t, kMaxDevices> lost_{};
  };

  // Where the driver keeps no records, or fails to, the device has none.
  void start(c10::DeviceIndex device, std::vector<std::string>& errors);
  bool has(c10::DeviceIndex device) const { return has_[static_cast<size_t>(device)]; }
  // Waits for the devices. What failed in one is raised by its next synchronisation.
  Times stop(std::vector<std::string>& errors);

 private:
  static void read(c10::DeviceIndex device, Times& times, std::vector<std::string>& errors);

  std::array<bool, kMaxDevices> has_{};
};

}  // namespace bringup::torch_ext
