#include "sim/device_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>

#include "sim/status.h"

namespace bringup::sim {
namespace {

constexpr size_t kPage = 4096;

size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

[[noreturn]] void fail(const char* what) {
  refuse(BRINGUP_ERROR, "the simulated NPU cannot ", what, ": ", std::strerror(errno));
}

std::byte* map(int file, size_t bytes, int protection) {
  void* base = mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (base == MAP_FAILED) fail("map its memory");
  return static_cast<std::byte*>(base);
}

std::string random_text() {
  std::random_device random;
  char text[33];
  std::snprintf(text, sizeof text, "%08x%08x%08x%08x", random(), random(), random(), random());
  return text;
}

// The content of a bringup_ipc_handle.
struct Handle {
  char name[64];  // of the exporter's file, as /proc shows it
  int32_t process;
  int32_t file;
  uint64_t offset;
  uint64_t bytes;
};
static_assert(sizeof(Handle) <= sizeof(bringup_ipc_handle));

// The exporter's file, unless the process has ended: another one may have its number by now.
int open_file(const Handle& handle) {
  const std::string path =
      "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  char found[sizeof handle.name] = {};
  const std::string opened = "/proc/self/fd/" + std::to_string(file);
  if (file >= 0 && readlink(opened.c_str(), found, sizeof found - 1) > 0 &&
      std::memcmp(found, handle.name, sizeof found) == 0) {
    return file;
  }
  if (file >= 0) ::close(file);
  throw SimError(BRINGUP_INVALID, "a handle was opened that stands for no memory of a process");
}

}  // namespace

DeviceMemory::DeviceMemory(size_t capacity, bool isolated)
    : capacity_(round_up(capacity, kPage)), free_bytes_(capacity_) {
  name_ = "bringup-sim-" + random_text();
  file_ = memfd_create(name_.c_str(), MFD_CLOEXEC);
  if (file_ < 0) fail("create its memory");
  if (ftruncate(file_, static_cast<off_t>(capacity_)) != 0) fail("size its memory");
  worker_base_ = map(file_, capacity_, PROT_READ | PROT_WRITE);
  device_base_ = isolated ? map(file_, capacity_, PROT_NONE) : worker_base_;
  free_.emplace(0, capacity_);
}

DeviceMemory::~DeviceMemory() {
  if (isolated()) munmap(device_base_, capacity_);
  munmap(worker_base_, capacity_);
  ::close(file_);
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
  if (allocation == live_.end() || opened_.contains(allocation->first)) return false;
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

bringup_ipc_handle DeviceMemory::describe(const void* address) const {
  const auto allocation = allocation_of(address);
  const std::lock_guard lock(mutex_);
  if (!allocation || allocation->first != address || opened_.contains(offset_of(address))) {
    throw SimError(BRINGUP_INVALID, "an address was exported that begins no allocation");
  }
  Handle handle{{}, getpid(), file_, offset_of(address), allocation->second};
  std::snprintf(handle.name, sizeof handle.name, "/memfd:%s (deleted)", name_.c_str());
  bringup_ipc_handle given{};
  std::memcpy(given.bytes, &handle, sizeof handle);
  return given;
}

void* DeviceMemory::open(const bringup_ipc_handle& given) {
  Handle handle;
  std::memcpy(&handle, given.bytes, sizeof handle);
  const int file = open_file(handle);
  const size_t inside = handle.offset % kPage;
  const size_t mapped = round_up(inside + handle.bytes, kPage);
  void* range = allocate(mapped + kPage);
  if (range == nullptr) {
    ::close(file);
    refuse(BRINGUP_OUT_OF_MEMORY, "no range of ", mapped + kPage,
           " bytes is free to map another process's memory");
  }
  const size_t begin = offset_of(range);
  const size_t first = round_up(begin, kPage);
  try {
    map_over(first, mapped, file, handle.offset - inside);
  } catch (...) {
    ::close(file);
    release(range);
    throw;
  }
  ::close(file);
  const std::lock_guard lock(mutex_);
  opened_[first + inside] = {begin, live_.extract(begin).mapped(), first, mapped};
  live_.emplace(first + inside, handle.bytes);
  return device_base_ + first + inside;
}

void DeviceMemory::close(void* address) {
  Opened opened{};
  {
    const std::lock_guard lock(mutex_);
    const auto found = contains(address) ? opened_.find(offset_of(address)) : opened_.end();
    if (found == opened_.end()) {
      throw SimError(BRINGUP_INVALID, "an address was closed that no open handle gave");
    }
    opened = found->second;
    map_over(opened.first, opened.mapped_bytes, file_, opened.first);
    live_.erase(found->first);
    live_.emplace(opened.range, opened.range_bytes);
    opened_.erase(found);
  }
  release(device_base_ + opened.range);
}

// Both mappings show these bytes of the file from now on.
void DeviceMemory::map_over(size_t begin, size_t bytes, int file, size_t file_offset) {
  const auto map_at = [&](std::byte* base, int protection) {
    const void* mapped = mmap(base + begin, bytes, protection, MAP_SHARED | MAP_FIXED, file,
                              static_cast<off_t>(file_offset));
    if (mapped == MAP_FAILED) fail("map another process's memory");
  };
  map_at(worker_base_, PROT_READ | PROT_WRITE);
  if (isolated()) map_at(device_base_, PROT_NONE);
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
