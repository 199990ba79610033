// What a driver has given out and not got back: so that it cannot give one thing out twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace bringup::driver {

// Live memory of all devices. Addresses of two devices may be equal, those of one may not overlap.
class Segments {
 public:
  // Why this memory cannot be what was asked for, or nothing, and it is live then.
  std::optional<std::string> add(int32_t device, const void* address, size_t bytes);
  // Returns its bytes; 0: it was not live.
  size_t remove(int32_t device, const void* address);
  // Memory that was removed is live all the same.
  void restore(int32_t device, const void* address, size_t bytes);
  // What addresses of a device are multiples of; 64 until it is set.
  void set_alignment(int32_t device, uint32_t alignment);
  size_t live_bytes(int32_t device);
  // The most bytes that are live at a time, of a driver that counts none itself.
  void set_capacity(int32_t device, size_t bytes);
  bool has_room(int32_t device, size_t bytes);

 private:
  std::mutex mutex_;
  std::map<std::pair<int32_t, uintptr_t>, size_t> live_;
  std::map<int32_t, uint32_t> alignments_;
  std::map<int32_t, size_t> capacities_;
};

// Live handles of one kind, and their devices.
class Handles {
 public:
  // False when it is live already.
  bool add(const void* handle, int32_t device);
  void remove(const void* handle);
  std::optional<int32_t> device_of(const void* handle);
  std::vector<const void*> of(int32_t device);
  // All of them, which are none of its own from then on.
  std::vector<const void*> take();

 private:
  std::mutex mutex_;
  std::unordered_map<const void*, int32_t> live_;
};

// Loaded modules, each as often as it was loaded: a driver may give one handle for all loads of a
// file.
class Modules {
 public:
  void add(void* module);
  void remove(const void* module);
  // All of them, which are none of its own from then on.
  std::vector<void*> take();

 private:
  std::mutex mutex_;
  std::vector<void*> live_;
};

}  // namespace bringup::driver
