#include "sim/work_log.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "sim/status.h"

namespace bringup::sim {

void WorkLog::start() {
  std::lock_guard lock(mutex_);
  if (recording() != 0) throw SimError(BRINGUP_INVALID, "the device records its work already");
  records_.clear();
  lost_ = 0;
  recording_.store(++last_recording_, std::memory_order_release);
}

void WorkLog::stop() {
  std::lock_guard lock(mutex_);
  if (recording() == 0) throw SimError(BRINGUP_INVALID, "the device does not record its work");
  recording_.store(0, std::memory_order_release);
}

void WorkLog::add(uint64_t recording, const bringup_record& record) {
  std::lock_guard lock(mutex_);
  if (recording != this->recording()) return;
  if (records_.size() < capacity_) {
    records_.push_back(record);
  } else {
    ++lost_;
  }
}

int32_t WorkLog::read(bringup_record* records, int32_t capacity, uint64_t& lost) {
  std::lock_guard lock(mutex_);
  lost = lost_;
  auto* next = reinterpret_cast<std::byte*>(records);
  int32_t count = 0;
  for (; count < capacity && !records_.empty(); ++count) {
    const uint32_t size = reinterpret_cast<const bringup_record*>(next)->struct_size;
    bringup_record record = records_.front();
    record.struct_size = size;
    std::memcpy(next, &record, std::min<size_t>(size, sizeof record));
    records_.pop_front();
    next += size;
  }
  return count;
}

int64_t wall_time_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace bringup::sim
