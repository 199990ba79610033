// What torch's profiler gets about a device: the work that its driver was given, with the times of
// the driver's own records, or of its events where it keeps none. How it gets to Kineto is
// kineto.cpp's.
#pragma once

#include <c10/core/Stream.h>
#include <c10/macros/Macros.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver/work_numbers.h"
#include "torch/devices/driver.h"

namespace bringup::torch_ext {

class TimedEvent;

// A fill, as ProfiledWork gets it.
struct ProfiledFill {
  size_t bytes;
};

struct ProfiledHostEntry {
  const char* name;
};

// A kernel, a copy, a fill or a captured graph that the driver ran.
struct ProfiledRow {
  ProfiledRow();
  ~ProfiledRow();

  std::string name;
  c10::DeviceIndex device = 0;
  int32_t stream = 0;  // 0 is the default stream; others are numbered as they appear
  enum class Kind : uint8_t { kKernel, kCopy, kFill };
  Kind kind = Kind::kKernel;
  size_t bytes = 0;          // of a copy or a fill
  uint64_t correlation = 0;  // the operator that it ran for, as torch numbers them; 0 for none
  int64_t start_ns = 0;      // since the Unix epoch
  int64_t end_ns = 0;

  uint64_t recording = 0;                  // which one it belongs to
  std::optional<driver::WorkNumber> work;  // where the driver keeps records
  std::unique_ptr<TimedEvent> start;
  std::unique_ptr<TimedEvent> end;
};

// While a recording runs, the work between construction and destruction becomes a row. Otherwise
// this is one comparison. Neither raises: work whose time cannot be taken has no row, and the
// recording says why.
class ProfiledWork {
 public:
  ProfiledWork(const char* name, const c10::Stream& stream) noexcept {
    if (C10_UNLIKELY(recording_.load(std::memory_order_relaxed))) begin(name, stream);
  }
  // A host entry, which gives the device work in a way of its own: timed by events.
  ProfiledWork(ProfiledHostEntry entry, const c10::Stream& stream) noexcept {
    if (C10_UNLIKELY(recording_.load(std::memory_order_relaxed)))
      begin(entry.name, stream, /*by_driver=*/false);
  }
  ProfiledWork(bringup_copy_kind kind, size_t bytes, const c10::Stream& stream) noexcept {
    if (C10_UNLIKELY(recording_.load(std::memory_order_relaxed))) begin_copy(kind, bytes, stream);
  }
  ProfiledWork(ProfiledFill fill, const c10::Stream& stream) noexcept {
    if (C10_UNLIKELY(recording_.load(std::memory_order_relaxed))) begin_fill(fill, stream);
  }
  ~ProfiledWork() {
    if (C10_UNLIKELY(row_ != nullptr)) end();
  }
  ProfiledWork& operator=(ProfiledWork&&) = delete;

 private:
  friend class Recorder;

  void begin(const char* name, const c10::Stream& stream, bool by_driver = true) noexcept;
  void begin_copy(bringup_copy_kind kind, size_t bytes, const c10::Stream& stream) noexcept;
  void begin_fill(ProfiledFill fill, const c10::Stream& stream) noexcept;
  void end() noexcept;

  static std::atomic<bool> recording_;
  std::unique_ptr<ProfiledRow> row_;
  c10::Stream stream_{c10::Stream::DEFAULT, c10::Device(c10::DeviceType::PrivateUse1, 0)};
};

struct ProfiledRows {
  std::vector<std::unique_ptr<ProfiledRow>> rows;
  std::vector<std::string> errors;
};

// Between these two, work is recorded; the second waits for it. A kernel that failed between them
// is raised by the next synchronisation, as without a profiler.
void start_recording() noexcept;
ProfiledRows stop_recording() noexcept;

// The operator that this thread runs, as torch numbers them.
void push_correlation(uint64_t id);
void pop_correlation() noexcept;

// Makes Kineto ask for rows, where torch was built with it.
void register_kineto();

}  // namespace bringup::torch_ext
