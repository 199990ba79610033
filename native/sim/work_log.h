// What a device did and when, for the functions of the driver's profiler.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>

#include "bringup/driver.h"

namespace bringup::sim {

// A piece of work that was given to a stream while a recording ran.
struct WorkNumber {
  uint64_t recording = 0;  // 0: none ran
  uint64_t number = 0;
};

class WorkLog {
 public:
  // `capacity`: of how many records one device keeps; further ones are counted as lost.
  explicit WorkLog(size_t capacity) : capacity_(capacity) {}

  void start();
  void stop();
  // The recording that runs, numbered from 1; 0 for none.
  uint64_t recording() const noexcept { return recording_.load(std::memory_order_acquire); }
  // Dropped when the recording it belongs to does not run any more.
  void add(uint64_t recording, const bringup_record& record);
  // Moves up to `capacity` records to the caller, each struct_size bytes after the former.
  int32_t read(bringup_record* records, int32_t capacity, uint64_t& lost);

 private:
  const size_t capacity_;
  std::atomic<uint64_t> recording_{0};
  std::mutex mutex_;
  uint64_t last_recording_ = 0;
  std::deque<bringup_record> records_;
  uint64_t lost_ = 0;
};

// Nanoseconds of CLOCK_REALTIME.
int64_t wall_time_ns() noexcept;

}  // namespace bringup::sim
