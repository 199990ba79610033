// An event: a mark in a stream. Each record is a new version; waiting means waiting for one
// version.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "sim/kernel_run.h"

namespace bringup::sim {

class Stream;

// What went wrong in a stream, and in those that waited for it.
struct StreamFailure {
  explicit StreamFailure(Failure failure) : what(std::move(failure)) {}
  const Failure what;
  std::atomic<bool> reported{false};
};

class Event {
 public:
  explicit Event(bool timing) : timing_(timing) {}

  // A record into `stream` was enqueued; returns its version.
  uint64_t issue(const std::shared_ptr<Stream>& stream);
  // The worker reached the record. `failure`: what the stream has not reported yet, or null.
  void complete(uint64_t version, std::shared_ptr<StreamFailure> failure = nullptr);

  uint64_t issued() const noexcept { return issued_.load(std::memory_order_acquire); }
  bool done(uint64_t version) const noexcept {
    return completed_.load(std::memory_order_acquire) >= version;
  }
  // Somebody wants the last record: its stream may not put it off.
  void demand() const;
  // Blocks until `version` is complete, until the simulator shuts down, or until `give_up` is set
  // and wake_event_waits() was called.
  void wait(uint64_t version, const std::atomic<bool>* give_up = nullptr) const;
  // False when `deadline` comes first.
  bool wait_until(uint64_t version, std::chrono::steady_clock::time_point deadline) const;

  // What failed before the last completed record and nobody was told of yet; null: nothing.
  std::shared_ptr<StreamFailure> failure() const;

  bool timing() const noexcept { return timing_; }
  // Nanoseconds of the last completed record.
  int64_t time() const noexcept { return time_.load(std::memory_order_acquire); }
  // The stream of the last record, if it still exists.
  std::shared_ptr<Stream> stream() const;

 private:
  const bool timing_;
  std::atomic<uint64_t> issued_{0};
  std::atomic<uint64_t> completed_{0};
  std::atomic<int64_t> time_{0};
  std::weak_ptr<Stream> stream_;
  std::atomic<bool> failed_{false};
  std::shared_ptr<StreamFailure> failure_;
};

// Wakes every wait() for good: the process is ending.
void abandon_event_waits();
// Lets every wait() look at its flag.
void wake_event_waits();

}  // namespace bringup::sim
