// What a driver has given out and not got back: so that it cannot give one thing out twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

namespace bringup::driver {

// Live memory of all devices. Addresses of two devices may be equal, those of one may not overlap.
class Segments {
 public:
  // Why this memory cannot be what was asked for, or nothing, and it is live then.
  std::optional<std::string> add(int32_t device, const void* address, size_t bytes);
  void remove(int32_t device, const void* address);

 private:
  std::mutex mutex_;
  std::map<std::pair<int32_t, uintptr_t>, size_t> live_;
};

// Live handles of one kind.
class Handles {
 public:
  // False when it is live already.
  bool add(const void* handle);
  void remove(const void* handle);

 private:
  std::mutex mutex_;
  std::unordered_set<const void*> live_;
};

}  // namespace bringup::driver
