// An event: a mark in a stream.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "sim/kernel_run.h"

namespace bringup::sim {

class Stream;

// What went wrong in a stream, and in those that waited for it.
struct StreamFailure {
  explicit StreamFailure(Failure failure, bool once = false)
      : what(std::move(failure)), is_told_once(once) {}
  const Failure what;
  // By the stream that is asked first, not by each: a collective's stream is often a library's own.
  const bool is_told_once;
  std::atomic<bool> reported{false};
};

// One record of an event in a stream. A wait is for the record that was the last one when the wait
// was given: another record, perhaps in another stream, changes nothing for it.
class EventRecord {
 public:
  explicit EventRecord(std::weak_ptr<Stream> stream) : stream_(std::move(stream)) {}

  // The worker reached it. `failure`: what the stream has not reported yet, or null. Once.
  void complete(std::shared_ptr<StreamFailure> failure = nullptr);
  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  // It is waited for: its stream may not put it off.
  void demand() const;
  // Blocks until it is complete, until the simulator shuts down, or until `give_up` is set and
  // wake_event_waits() was called.
  void wait(const std::atomic<bool>* give_up = nullptr) const;
  // False when `deadline` comes first.
  bool wait_until(std::chrono::steady_clock::time_point deadline) const;

  // What failed before it and was not reported yet; null: nothing, or it is not complete.
  std::shared_ptr<StreamFailure> failure() const;
  int64_t time() const noexcept { return time_; }                    // nanoseconds, once it is done
  std::shared_ptr<Stream> stream() const { return stream_.lock(); }  // null: it is gone

 private:
  const std::weak_ptr<Stream> stream_;
  int64_t time_ = 0;                        // written before done_, read after it
  std::shared_ptr<StreamFailure> failure_;  // so is this
  std::atomic<bool> done_{false};
};

class Event {
 public:
  explicit Event(bool timing) : timing_(timing) {}

  // A record into `stream` is to be enqueued: it is the last one from now on.
  std::shared_ptr<EventRecord> issue(const std::shared_ptr<Stream>& stream);
  std::shared_ptr<EventRecord> last() const;  // null: it was never recorded
  bool timing() const noexcept { return timing_; }

 private:
  const bool timing_;
  mutable std::mutex mutex_;
  std::shared_ptr<EventRecord> last_;
};

// Wakes every wait() for good: the process is ending.
void abandon_event_waits();
// Lets every wait() look at its flag.
void wake_event_waits();

}  // namespace bringup::sim
