#include "sim/simulator.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <sstream>
#include <string>

#include "sim/event.h"
#include "sim/faults.h"
#include "sim/number_text.h"
#include "sim/status.h"

namespace bringup::sim {
namespace {

std::atomic<bool> g_forked{false};
std::atomic<bool> g_ended{false};

size_t memory_setting() {
  constexpr size_t kDefault = size_t{4} << 30;
  const char* text = std::getenv("BRINGUP_SIM_MEMORY");
  if (text == nullptr || *text == '\0') return kDefault;
  if (const auto bytes = byte_count(text)) return *bytes;
  refuse(BRINGUP_INVALID, "BRINGUP_SIM_MEMORY='", text,
         "': expected a number of bytes from 1 to 16384G, such as 512M or 4G");
}

bool switch_setting(const char* name, bool by_default) {
  const char* text = std::getenv(name);
  const std::string value = text != nullptr ? text : "";
  if (value.empty()) return by_default;
  if (value == "0" || value == "1") return value == "1";
  refuse(BRINGUP_INVALID, name, "='", value, "': expected 1 or 0");
}

std::string faults_setting() {
  const char* text = std::getenv("BRINGUP_SIM_FAULTS");
  return text != nullptr ? text : "";
}

FaultPlan read_faults(const std::string& text) {
  try {
    return FaultPlan::parse(text, true);
  } catch (const SimError& error) {
    refuse(BRINGUP_INVALID, "BRINGUP_SIM_FAULTS: ", error.what());
  }
}

size_t records_setting() {
  constexpr uint64_t kDefault = uint64_t{1} << 20;
  constexpr uint64_t kMost = uint64_t{1} << 30;
  const char* text = std::getenv("BRINGUP_SIM_RECORDS");
  if (text == nullptr || *text == '\0') return kDefault;
  const auto number = whole_number(text);
  if (number && *number <= kMost) return *number;
  refuse(BRINGUP_INVALID, "BRINGUP_SIM_RECORDS='", text, "': expected a number from 0 to ", kMost);
}

std::string archs_setting() {
  const char* text = std::getenv("BRINGUP_SIM_ARCHS");
  return text != nullptr ? text : "";
}

// The names of an archs setting, one a device.
std::array<std::string, kDeviceCount> read_archs(const std::string& text) {
  std::array<std::string, kDeviceCount> archs;
  archs.fill("sim-1");
  if (text.empty()) return archs;
  std::istringstream names(text);
  size_t count = 0;
  for (std::string name; std::getline(names, name, ','); ++count) {
    const bool fits = !name.empty() && name.size() < sizeof(bringup_device_props::arch);
    if (!fits || count == archs.size()) break;
    archs[count] = name;
  }
  if (count == archs.size() && names.eof()) return archs;
  refuse(BRINGUP_INVALID, "BRINGUP_SIM_ARCHS='", text, "': expected ", kDeviceCount,
         " names of 1 to 31 bytes, separated by commas");
}

}  // namespace

std::string& last_error_text() {
  thread_local std::string text;
  return text;
}

ErrorDetail& last_error_detail() {
  thread_local ErrorDetail detail;
  return detail;
}

Simulator::Simulator(const SimSettings& settings) {
  const FaultPlan faults = read_faults(settings.faults);
  const auto archs = read_archs(settings.archs);
  runs_host_code_ = settings.host_code;
  for (int32_t index = 0; index < kDeviceCount; ++index) {
    auto device = std::make_unique<Device>(settings);
    device->arch = archs[static_cast<size_t>(index)];
    device->default_stream =
        std::make_shared<Stream>(index, 0, device->memory, device->turns, device->log, 0);
    device->streams.push_back(device->default_stream);
    devices_[static_cast<size_t>(index)] = std::move(device);
  }
  if (!settings.faults.empty()) Faults::instance().add(faults);
}

// Never destroyed: the host may still free memory while static destructors run. At the end of the
// process the workers are joined and later calls are refused.
Simulator& Simulator::start() {
  static auto* simulator = new Simulator(
      {memory_setting(), switch_setting("BRINGUP_SIM_ISOLATED", false), faults_setting(),
       records_setting(), archs_setting(), switch_setting("BRINGUP_SIM_HOST_CODE", true)});
  static const bool ends = [] {
    pthread_atfork(nullptr, nullptr, [] { g_forked = true; });
    std::atexit([] { start().shut_down(); });
    return true;
  }();
  (void)ends;
  return *simulator;
}

Simulator& Simulator::instance() {
  if (g_forked) {
    throw SimError(BRINGUP_ERROR,
                   "the simulated NPU cannot be used in a forked process, because its worker "
                   "threads stayed in the "
                   "parent: start the process with the 'spawn' method");
  }
  if (g_ended)
    throw SimError(BRINGUP_DEVICE_LOST, "the simulated NPU was shut down: the process is ending");
  return start();
}

void Simulator::shut_down() {
  if (g_forked || g_ended.exchange(true)) return;
  abandon_event_waits();
  std::vector<std::shared_ptr<Stream>> streams;
  {
    std::lock_guard lock(mutex_);
    for (auto& device : devices_) {
      streams.insert(streams.end(), device->streams.begin(), device->streams.end());
    }
  }
  Communicator::break_all(-1, "the simulated NPU was shut down");
  for (auto& stream : streams) stream->stop(false);
}

Simulator::Device& Simulator::device(int32_t index) {
  if (index < 0 || index >= kDeviceCount) {
    refuse(BRINGUP_INVALID, "no simulated device ", index, ": there are ", kDeviceCount);
  }
  return *devices_[static_cast<size_t>(index)];
}

DeviceMemory& Simulator::memory(int32_t index) { return device(index).memory; }
WorkLog& Simulator::work_log(int32_t index) { return device(index).log; }

DeviceMemory* Simulator::memory_of(const void* address) {
  for (auto& device : devices_) {
    if (device->memory.contains(address)) return &device->memory;
  }
  return nullptr;
}

std::byte* Simulator::range(const void* address, size_t bytes, const char* role) {
  DeviceMemory* memory = memory_of(address);
  if (memory == nullptr || !memory->covers(address, bytes)) {
    refuse(BRINGUP_INVALID, role, " of ", bytes,
           " bytes is not within one allocation of device memory");
  }
  return static_cast<std::byte*>(memory->worker_address(address));
}

std::shared_ptr<Stream> Simulator::stream(int32_t index, bringup_stream handle) {
  Device& owner = device(index);
  if (handle == nullptr) return owner.default_stream;
  auto stream = reinterpret_cast<Stream*>(handle)->shared_from_this();
  if (stream->device() != index) {
    refuse(BRINGUP_INVALID, "a stream of device ", stream->device(), " was used with device ",
           index);
  }
  return stream;
}

bringup_stream Simulator::create_stream(int32_t index, int32_t priority) {
  Device& owner = device(index);
  if (priority < kGreatestPriority || priority > kLeastPriority) {
    refuse(BRINGUP_INVALID, "a stream of priority ", priority, ": there are those from ",
           kGreatestPriority, " to ", kLeastPriority);
  }
  std::lock_guard lock(mutex_);
  auto stream = std::make_shared<Stream>(index, next_stream_number_++, owner.memory, owner.turns,
                                         owner.log, priority);
  owner.streams.push_back(stream);
  return reinterpret_cast<bringup_stream>(stream.get());
}

void Simulator::destroy_stream(bringup_stream handle) {
  auto stream = reinterpret_cast<Stream*>(handle)->shared_from_this();
  {
    std::lock_guard lock(mutex_);
    std::erase(device(stream->device()).streams, stream);
  }
  stream->stop(true);
  stream->raise_failure();
}

std::vector<std::shared_ptr<Stream>> Simulator::streams_of(int32_t index) {
  std::lock_guard lock(mutex_);
  return device(index).streams;
}

void Simulator::reset(int32_t index) {
  const auto streams = streams_of(index);
  for (const auto& stream : streams) stream->begin_reset();
  Faults::instance().reset(index);
  wake_event_waits();
  Communicator::break_all(index, "its device was reset");
  for (const auto& stream : streams) stream->end_reset();
}

void Simulator::synchronize(int32_t index) {
  std::exception_ptr first;  // every stream is waited for, whatever another one did
  for (const auto& stream : streams_of(index)) {
    try {
      stream->synchronize();
    } catch (const SimError&) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void Simulator::wake_streams() {
  const std::lock_guard lock(mutex_);
  for (auto& device : devices_) {
    for (auto& stream : device->streams) stream->wake();
  }
}

}  // namespace bringup::sim
