// Host memory that the device knows: its own pinned memory, and what was registered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/util/forever.h"

namespace bringup::sim {

class HostRanges {
 public:
  // False when the range overlaps another.
  bool add(void* address, size_t bytes, bool registered) {
    const auto begin = reinterpret_cast<uintptr_t>(address);
    std::lock_guard lock(mutex_);
    const auto next = ranges_.lower_bound(begin);
    if (next != ranges_.end() && next->first < begin + bytes) return false;
    if (next != ranges_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second.bytes > begin) return false;
    }
    ranges_.emplace_hint(next, begin, Range{bytes, registered});
    return true;
  }
  // False when no such range of this kind begins there.
  bool remove(void* address, bool registered) {
    std::lock_guard lock(mutex_);
    const auto range = ranges_.find(reinterpret_cast<uintptr_t>(address));
    if (range == ranges_.end() || range->second.registered != registered) return false;
    ranges_.erase(range);
    return true;
  }
  // Beginning and bytes of the range that holds an address.
  std::optional<std::pair<void*, size_t>> find(const void* address) {
    const auto wanted = reinterpret_cast<uintptr_t>(address);
    std::lock_guard lock(mutex_);
    auto range = ranges_.upper_bound(wanted);
    if (range == ranges_.begin()) return std::nullopt;
    --range;
    if (wanted >= range->first + range->second.bytes) return std::nullopt;
    return std::pair{reinterpret_cast<void*>(range->first), range->second.bytes};
  }

 private:
  struct Range {
    size_t bytes;
    bool registered;
  };
  std::mutex mutex_;
  std::map<uintptr_t, Range> ranges_;
};

inline HostRanges& host_ranges() { return forever<HostRanges>(); }

}  // namespace bringup::sim
