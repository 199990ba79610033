// What the allocator of device memory gave and took back, while it is recorded.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace bringup::torch_ext {

struct MemoryEvent {
  bool is_allocation;
  c10::DeviceIndex device;
  int64_t stream;
  const void* address;
  size_t bytes;
  int64_t microseconds;  // since the epoch
};

// From now on the last `most` are kept, without those from before; none: no more.
void record_memory_history(std::optional<size_t> most);
// In the order of time. Empty where none is recorded.
std::vector<MemoryEvent> memory_history();

bool records_memory_history() noexcept;
void note_memory(bool is_allocation, c10::DeviceIndex device, int64_t stream, const void* address,
                 size_t bytes);

}  // namespace bringup::torch_ext
