// One device's memory: a reserved address range over a memfd, and the allocator inside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace bringup::sim {

// With isolation the device addresses are mapped without any access right, so that a host that
// touches them faults; the workers go through a second mapping of the same memory. Without it both
// are one mapping.
class DeviceMemory {
 public:
  static constexpr size_t kAlignment = 256;

  DeviceMemory(size_t capacity, bool isolated);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // Null when no free range is long enough.
  void* allocate(size_t bytes);
  // False when `address` is not the start of an allocation.
  bool release(void* address);

  bool contains(const void* address) const noexcept {
    const auto* byte = static_cast<const std::byte*>(address);
    return byte >= device_base_ && byte < device_base_ + capacity_;
  }
  // The live allocation that holds an address: where it begins, and its bytes.
  std::optional<std::pair<void*, size_t>> allocation_of(const void* address) const;
  // True when the whole range lies in one live allocation.
  bool covers(const void* address, size_t bytes) const;

  // Where a worker finds the memory behind a device address of this device.
  void* worker_address(const void* address) const noexcept {
    return worker_base_ + (static_cast<const std::byte*>(address) - device_base_);
  }

  bool isolated() const noexcept { return device_base_ != worker_base_; }
  size_t capacity() const noexcept { return capacity_; }
  size_t free_bytes() const;

 private:
  size_t offset_of(const void* address) const noexcept {
    return static_cast<size_t>(static_cast<const std::byte*>(address) - device_base_);
  }
  void give_pages_back(size_t begin, size_t end);

  const size_t capacity_;
  int file_ = -1;
  std::byte* worker_base_ = nullptr;
  std::byte* device_base_ = nullptr;

  mutable std::mutex mutex_;
  std::map<size_t, size_t> free_;  // offset -> bytes; neighbours are always merged
  std::map<size_t, size_t> live_;
  size_t free_bytes_;
};

}  // namespace bringup::sim
