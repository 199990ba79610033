#include "sim/device_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "sim/status.h"

namespace bringup::sim {
namespace {

constexpr size_t kPage = 4096;

size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

[[noreturn]] void fail(const char* what) {
  throw SimError(BRINGUP_ERROR,
                 std::string("the simulated NPU cannot ") + what + ": " + std::strerror(errno));
}

std::byte* map(int file, size_t bytes, int protection) {
  void* base = mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (base == MAP_FAILED) fail("map its memory");
  return static_cast<std::byte*>(base);
}

}  // namespace

DeviceMemory::DeviceMemory(size_t capacity, bool isolated)
    : capacity_(round_up(capacity, kPage)), free_bytes_(capacity_) {
  file_ = memfd_create("bringup-sim", MFD_CLOEXEC);
  if (file_ < 0) fail("create its memory");
  if (ftruncate(file_, static_cast<off_t>(capacity_)) != 0) fail("size its memory");
  worker_base_ = map(file_, capacity_, PROT_READ | PROT_WRITE);
  device_base_ = isolated ? map(file_, capacity_, PROT_NONE) : worker_base_;
  free_.emplace(0, capacity_);
}

DeviceMemory::~DeviceMemory() {
  if (isolated()) munmap(device_base_, capacity_);
  munmap(worker_base_, capacity_);
  close(file_);
}

void* DeviceMemory::allocate(size_t bytes) {
  if (bytes > capacity_) return nullptr;
  const size_t wanted = round_up(bytes, kAlignment);
  std::lock_guard lock(mutex_);
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [offset, available] = *range;
    if (available < wanted) continue;
    free_.erase(range);
    if (available > wanted) free_.emplace(offset + wanted, available - wanted);
    live_.emplace(offset, wanted);
    free_bytes_ -= wanted;
    return device_base_ + offset;
  }
  return nullptr;
}

bool DeviceMemory::release(void* address) {
  if (!contains(address)) return false;
  std::lock_guard lock(mutex_);
  const auto allocation = live_.find(offset_of(address));
  if (allocation == live_.end()) return false;
  auto [begin, bytes] = *allocation;
  live_.erase(allocation);
  free_bytes_ += bytes;
  give_pages_back(begin, begin + bytes);

  const auto next = free_.lower_bound(begin);
  if (next != free_.end() && begin + bytes == next->first) {
    bytes += next->second;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(begin);
  if (after != free_.begin()) {
    const auto previous = std::prev(after);
    if (previous->first + previous->second == begin) {
      previous->second += bytes;
      return true;
    }
  }
  free_.emplace(begin, bytes);
  return true;
}

std::optional<std::pair<void*, size_t>> DeviceMemory::allocation_of(const void* address) const {
  if (!contains(address)) return std::nullopt;
  const size_t offset = offset_of(address);
  std::lock_guard lock(mutex_);
  auto allocation = live_.upper_bound(offset);
  if (allocation == live_.begin()) return std::nullopt;
  --allocation;
  const auto [begin, bytes] = *allocation;
  if (offset >= begin + bytes) return std::nullopt;
  return std::pair<void*, size_t>{device_base_ + begin, bytes};
}

bool DeviceMemory::covers(const void* address, size_t bytes) const {
  const auto allocation = allocation_of(address);
  if (!allocation) return false;
  const auto* begin = static_cast<const std::byte*>(address);
  return begin + bytes <= static_cast<std::byte*>(allocation->first) + allocation->second;
}

size_t DeviceMemory::free_bytes() const {
  std::lock_guard lock(mutex_);
  return free_bytes_;
}

// A freed range keeps its addresses but not its pages, so an idle device costs the host nothing.
void DeviceMemory::give_pages_back(size_t begin, size_t end) {
  const size_t first = round_up(begin, kPage);
  const size_t last = end / kPage * kPage;
  if (first >= last) return;
  // Only a hint: where holes are not supported the pages simply stay.
  (void)fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
                  static_cast<off_t>(last - first));
}

}  // namespace bringup::sim
