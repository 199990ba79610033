#include "torch/devices/driver_records.h"

namespace bringup::torch_ext {
namespace {

constexpr int32_t kAtOnce = 1024;
constexpr size_t kMost = size_t{1} << 24;  // a driver that never comes to an end is not read on

ProfiledRow::Kind kind_of(const bringup_record& record) {
  switch (record.kind) {
    case BRINGUP_RECORD_COPY:
      return ProfiledRow::Kind::kCopy;
    case BRINGUP_RECORD_FILL:
      return ProfiledRow::Kind::kFill;
    default:
      return ProfiledRow::Kind::kKernel;
  }
}

const char* name_of(const bringup_record& record) {
  if (record.name[0] != '\0') return record.name;
  switch (record.kind) {
    case BRINGUP_RECORD_COPY:
      return "Memcpy";
    case BRINGUP_RECORD_FILL:
      return "Memset";
    case BRINGUP_RECORD_GRAPH:
      return "graph";
    default:
      return "kernel";
  }
}

void take_record(ProfiledRow& row, const bringup_record& record) {
  row.start_ns = record.begin;
  row.end_ns = record.end;
}

}  // namespace

void DriverRecords::start(c10::DeviceIndex device, std::vector<std::string>& errors) {
  const bringup_driver& driver = *active_driver();
  if (driver.profiler_start == nullptr) return;
  const int32_t status = driver.profiler_start(device);
  has_[static_cast<size_t>(device)] = status == BRINGUP_OK;
  if (status == BRINGUP_OK) return;
  errors.push_back(
      "device " + std::to_string(device) +
      " keeps no records, its times are those of events: " + driver_error_text(status));
}

DriverRecords::Times DriverRecords::stop(std::vector<std::string>& errors) {
  Times times;
  for (c10::DeviceIndex device = 0; device < driver_facts().device_count; ++device) {
    if (!has(device)) continue;
    int32_t status = wait_for_device(device);
    if (status != BRINGUP_OK) {
      report_host_failure(device, driver_failure_text(status, "waiting for what is recorded"));
    }
    status = active_driver()->profiler_stop(device);
    if (status != BRINGUP_OK) {
      errors.push_back("ending the records of device " + std::to_string(device) + ": " +
                       driver_error_text(status));
    }
    read(device, times, errors);
    has_[static_cast<size_t>(device)] = false;
  }
  return times;
}

void DriverRecords::read(c10::DeviceIndex device, Times& times, std::vector<std::string>& errors) {
  std::vector<bringup_record> records(kAtOnce);
  const std::string where = "device " + std::to_string(device);
  uint64_t& lost = times.lost_[static_cast<size_t>(device)];
  for (size_t total = 0; total < kMost;) {
    for (bringup_record& record : records) record.struct_size = sizeof record;
    int32_t count = 0;
    const int32_t status =
        active_driver()->profiler_read(device, records.data(), kAtOnce, &count, &lost);
    if (status != BRINGUP_OK) {
      errors.push_back("reading the records of " + where + ": " + driver_error_text(status));
      return;
    }
    if (count == 0) break;
    for (int32_t i = 0; i < count; ++i) {
      const bringup_record& record = records[static_cast<size_t>(i)];
      const driver::WorkNumber work{device, record.stream, record.number};
      if (!times.records_.try_emplace(work, record).second) {
        errors.push_back("the driver gave two records of one piece of work of " + where);
      }
    }
    total += static_cast<size_t>(count);
  }
  if (lost == 0) return;
  errors.push_back(where + " lost " + std::to_string(lost) +
                   " records, for which it had no room: the profile lacks their rows");
}

bool DriverRecords::Times::take(ProfiledRow& row, std::vector<std::string>& errors) {
  const auto found = records_.find(*row.work);
  if (found == records_.end()) {
    if (lost_[static_cast<size_t>(row.device)] == 0) {
      errors.push_back(row.name + ": the driver gave no record of it");
    }
    return false;
  }
  const bringup_record record = found->second;
  records_.erase(found);
  if (kind_of(record) != row.kind) {
    errors.push_back(row.name + ": the driver's record of it is of other work (kind " +
                     std::to_string(record.kind) + ")");
    return false;
  }
  take_record(row, record);
  return true;
}

void DriverRecords::Times::add_others(
    std::vector<std::unique_ptr<ProfiledRow>>& rows,
    const std::function<int32_t(const driver::WorkNumber&)>& stream_number) {
  for (const auto& [work, record] : records_) {
    auto row = std::make_unique<ProfiledRow>();
    row->name = name_of(record);
    row->device = static_cast<c10::DeviceIndex>(work.device);
    row->stream = stream_number(work);
    row->kind = kind_of(record);
    row->bytes = record.bytes;
    take_record(*row, record);
    rows.push_back(std::move(row));
  }
}

}  // namespace bringup::torch_ext
