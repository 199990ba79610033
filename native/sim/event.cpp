#include "sim/event.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "engine/util/forever.h"
#include "sim/stream.h"

namespace bringup::sim {
namespace {

// Waiting is rare, so all events share one place to wait: completing costs a look at the number of
// waiters. Never destroyed: workers may still be here when static destructors run.
struct WaitingRoom {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<int> waiters{0};
  bool abandoned = false;
};
WaitingRoom& waiting_room() { return forever<WaitingRoom>(); }

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void EventRecord::complete(std::shared_ptr<StreamFailure> failure) {
  failure_ = std::move(failure);
  time_ = now_ns();
  done_.store(true);
  if (waiting_room().waiters.load() == 0) return;
  std::lock_guard lock(waiting_room().mutex);
  waiting_room().changed.notify_all();
}

void EventRecord::demand() const {
  if (const auto owner = stream()) owner->demand();
}

void EventRecord::wait(const std::atomic<bool>* give_up) const {
  if (done()) return;
  demand();
  WaitingRoom& room = waiting_room();
  room.waiters.fetch_add(1);
  std::unique_lock lock(room.mutex);
  room.changed.wait(
      lock, [&] { return room.abandoned || done_.load() || (give_up != nullptr && *give_up); });
  lock.unlock();
  room.waiters.fetch_sub(1);
}

bool EventRecord::wait_until(std::chrono::steady_clock::time_point deadline) const {
  if (done()) return true;
  demand();
  WaitingRoom& room = waiting_room();
  room.waiters.fetch_add(1);
  std::unique_lock lock(room.mutex);
  const bool over =
      room.changed.wait_until(lock, deadline, [&] { return room.abandoned || done_.load(); });
  lock.unlock();
  room.waiters.fetch_sub(1);
  return over;
}

std::shared_ptr<StreamFailure> EventRecord::failure() const {
  return done() && failure_ != nullptr && !failure_->reported.load() ? failure_ : nullptr;
}

std::shared_ptr<EventRecord> Event::issue(const std::shared_ptr<Stream>& stream) {
  auto record = std::make_shared<EventRecord>(stream);
  std::lock_guard lock(mutex_);
  return last_ = std::move(record);
}

std::shared_ptr<EventRecord> Event::last() const {
  std::lock_guard lock(mutex_);
  return last_;
}

void wake_event_waits() {
  std::lock_guard lock(waiting_room().mutex);
  waiting_room().changed.notify_all();
}

void abandon_event_waits() {
  std::lock_guard lock(waiting_room().mutex);
  waiting_room().abandoned = true;
  waiting_room().changed.notify_all();
}

}  // namespace bringup::sim
