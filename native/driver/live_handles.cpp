#include "driver/live_handles.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace bringup::driver {
namespace {

constexpr uint32_t kLeastAlignment = 64;

std::string hex(uintptr_t address) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

}  // namespace

std::optional<std::string> Segments::add(int32_t device, const void* address, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  if (begin == 0) return "returned BRINGUP_OK and no address";
  if (begin + bytes < begin)
    return "gave the address " + hex(begin) + ", behind which there are no " +
           std::to_string(bytes) + " bytes";
  const std::lock_guard lock(mutex_);
  const auto set = alignments_.find(device);
  const uint32_t alignment = set != alignments_.end() ? set->second : kLeastAlignment;
  if (begin % alignment != 0) {
    return "gave the address " + hex(begin) + ", which is not " + std::to_string(alignment) +
           "-byte aligned";
  }
  const auto overlap = [&](auto entry) {
    return "gave " + std::to_string(bytes) + " bytes at " + hex(begin) + " of device " +
           std::to_string(device) + ", which overlap the " + std::to_string(entry->second) +
           " bytes at " + hex(entry->first.second) + " that are still in use";
  };
  auto next = live_.lower_bound({device, begin});
  if (next != live_.end() && next->first.first == device && next->first.second < begin + bytes) {
    return overlap(next);
  }
  if (next != live_.begin()) {
    const auto before = std::prev(next);
    if (before->first.first == device && before->first.second + before->second > begin) {
      return overlap(before);
    }
  }
  live_.emplace_hint(next, std::pair{device, begin}, bytes);
  return std::nullopt;
}

size_t Segments::remove(int32_t device, const void* address) {
  const std::lock_guard lock(mutex_);
  const auto removed = live_.extract({device, reinterpret_cast<uintptr_t>(address)});
  return removed.empty() ? 0 : removed.mapped();
}

void Segments::restore(int32_t device, const void* address, size_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  live_.emplace(std::pair{device, reinterpret_cast<uintptr_t>(address)}, bytes);
}

void Segments::set_alignment(int32_t device, uint32_t alignment) {
  const std::lock_guard lock(mutex_);
  alignments_[device] = std::max(alignment, kLeastAlignment);
}

size_t Segments::live_bytes(int32_t device) {
  const std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (auto entry = live_.lower_bound({device, 0});
       entry != live_.end() && entry->first.first == device; ++entry) {
    bytes += entry->second;
  }
  return bytes;
}

void Segments::set_capacity(int32_t device, size_t bytes) {
  const std::lock_guard lock(mutex_);
  capacities_[device] = bytes;
}

bool Segments::has_room(int32_t device, size_t bytes) {
  const size_t used = live_bytes(device);
  const std::lock_guard lock(mutex_);
  const auto set = capacities_.find(device);
  return set == capacities_.end() || (used <= set->second && bytes <= set->second - used);
}

bool Handles::add(const void* handle, int32_t device) {
  const std::lock_guard lock(mutex_);
  return live_.emplace(handle, device).second;
}

std::optional<int32_t> Handles::device_of(const void* handle) {
  const std::lock_guard lock(mutex_);
  const auto entry = live_.find(handle);
  if (entry == live_.end()) return std::nullopt;
  return entry->second;
}

std::vector<const void*> Handles::of(int32_t device) {
  const std::lock_guard lock(mutex_);
  std::vector<const void*> found;
  for (const auto& [handle, owner] : live_) {
    if (owner == device) found.push_back(handle);
  }
  return found;
}

void Handles::remove(const void* handle) {
  const std::lock_guard lock(mutex_);
  live_.erase(handle);
}

std::vector<const void*> Handles::take() {
  const std::lock_guard lock(mutex_);
  std::vector<const void*> handles;
  for (const auto& [handle, device] : live_) handles.push_back(handle);
  live_.clear();
  return handles;
}

void Modules::add(void* module) {
  const std::lock_guard lock(mutex_);
  live_.push_back(module);
}

void Modules::remove(const void* module) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find(live_.begin(), live_.end(), module);
  if (found != live_.end()) live_.erase(found);
}

std::vector<void*> Modules::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(live_, {});
}

}  // namespace bringup::driver
