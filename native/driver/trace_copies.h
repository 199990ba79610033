// Which copies are known to be done: what a device wrote to the host can be read from then on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "bringup/driver.h"

namespace bringup::driver {

// A copy between host and device that has been given to a stream.
struct TracedCopy {
  uint64_t call = 0;
  bringup_copy_kind kind{};
  std::byte* host = nullptr;  // `height` rows of `width` bytes, `pitch` bytes apart
  size_t width = 0;
  size_t height = 1;
  size_t pitch = 0;
  bool is_overwritten = false;  // a later copy goes to the same host memory
};

// Follows streams and events as vector clocks: each stream knows how much of each stream is done
// once its own work is. Only a call that the program makes after its copy can tell it that the copy
// is done; until then the host's side of it stays in place.
class PendingCopies {
 public:
  using Stream = std::pair<int32_t, bringup_stream>;  // device and handle
  using Clock = std::map<Stream, uint64_t>;

  void add(TracedCopy copy, Stream stream);
  // What a stream is given while it is captured does not run: its copies are never done.
  void begin_capture(Stream stream);
  void end_capture(Stream stream);
  void record(bringup_event event, Stream stream);
  void wait(bringup_event event, Stream stream);
  void forget(bringup_event event);

  // What is done once a wait that begins now is over.
  Clock after(Stream stream) const;
  Clock after(bringup_event event) const;
  Clock after_device(int32_t device) const;

  // Calls `visit` for each copy that `done` covers and forgets it. Under the lock: another thread
  // that learns of the same copies waits, and keeps their memory until then.
  void take(const Clock& done, const std::function<void(const TracedCopy&)>& visit);

  // True when a copy that may not be done yet writes to this host memory.
  bool is_being_written(const void* host, size_t bytes) const;

 private:
  struct Entry {
    TracedCopy copy;
    Stream stream;
    uint64_t position;
  };

  mutable std::mutex mutex_;
  std::vector<Entry> pending_;  // in the order given
  std::map<Stream, Clock> streams_;
  std::map<bringup_event, Clock> events_;
  std::set<Stream> captured_;
};

}  // namespace bringup::driver
