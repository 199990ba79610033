#include "sim/host_ranges.h"

#include <iterator>

namespace bringup::sim {

HostRanges& host_ranges() {
  static auto* ranges = new HostRanges;
  return *ranges;
}

bool HostRanges::add(void* address, size_t bytes, bool registered) {
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

bool HostRanges::remove(void* address, bool registered) {
  std::lock_guard lock(mutex_);
  const auto range = ranges_.find(reinterpret_cast<uintptr_t>(address));
  if (range == ranges_.end() || range->second.registered != registered) return false;
  ranges_.erase(range);
  return true;
}

std::optional<std::pair<void*, size_t>> HostRanges::find(const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  std::lock_guard lock(mutex_);
  auto range = ranges_.upper_bound(wanted);
  if (range == ranges_.begin()) return std::nullopt;
  --range;
  if (wanted >= range->first + range->second.bytes) return std::nullopt;
  return std::pair{reinterpret_cast<void*>(range->first), range->second.bytes};
}

}  // namespace bringup::sim
