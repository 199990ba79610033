// One device's memory: a reserved address range over a memfd, and the allocator inside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "bringup/driver.h"

namespace bringup::sim {

// With isolation the device addresses are mapped without any access right, so that a host that
// touches them faults; the workers go through a second mapping of the same memory. Without it both
// are one mapping.
class DeviceMemory {
 public:
  static constexpr size_t kAlignment = 256;

  DeviceMemory(size_t capacity, bool isolated);
  ~DeviceMemory();
  DeviceMemory& operator=(DeviceMemory&&) = delete;

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

  // What another process needs to open the allocation that begins at `address`.
  bringup_ipc_handle describe(const void* address) const;
  // Maps such an allocation, also of this process: where it is memory of this device.
  void* open(const bringup_ipc_handle& handle);
  void close(void* address);

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
  void map_over(size_t begin, size_t bytes, int file, size_t file_offset);

  struct Opened {
    size_t range;  // that is reserved for it
    size_t range_bytes;
    size_t first;  // of the mapped pages
    size_t mapped_bytes;
  };

  const size_t capacity_;
  std::string name_;  // of its file: no two have the same
  int file_ = -1;
  std::byte* worker_base_ = nullptr;
  std::byte* device_base_ = nullptr;

  mutable std::mutex mutex_;
  std::map<size_t, size_t> free_;  // offset -> bytes; neighbours are always merged
  std::map<size_t, size_t> live_;
  std::map<size_t, Opened> opened_;  // of live_, what other processes own
  size_t free_bytes_;
};

}  // namespace bringup::sim
