// Host memory that the device knows: its own pinned memory, and what was registered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace bringup::sim {

class HostRanges {
 public:
  // False when the range overlaps another.
  bool add(void* address, size_t bytes, bool registered);
  // False when no such range of this kind begins there.
  bool remove(void* address, bool registered);
  // Beginning and bytes of the range that holds an address.
  std::optional<std::pair<void*, size_t>> find(const void* address);

 private:
  struct Range {
    size_t bytes;
    bool registered;
  };
  std::mutex mutex_;
  std::map<uintptr_t, Range> ranges_;
};

// Never destroyed.
HostRanges& host_ranges();

}  // namespace bringup::sim
