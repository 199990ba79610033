#include "sim/event.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

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
WaitingRoom& waiting_room() {
  static auto* room = new WaitingRoom;
  return *room;
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

uint64_t Event::issue(const std::shared_ptr<Stream>& stream) {
  std::lock_guard lock(waiting_room().mutex);
  stream_ = stream;
  return issued_.fetch_add(1, std::memory_order_acq_rel) + 1;
}

std::shared_ptr<Stream> Event::stream() const {
  std::lock_guard lock(waiting_room().mutex);
  return stream_.lock();
}

void Event::complete(uint64_t version, std::shared_ptr<StreamFailure> failure) {
  if (failure != nullptr || failed_.load()) {
    std::lock_guard lock(waiting_room().mutex);
    failed_ = failure != nullptr;
    failure_ = std::move(failure);
  }
  time_.store(now_ns(), std::memory_order_release);
  uint64_t former = completed_.load(std::memory_order_relaxed);
  while (former < version && !completed_.compare_exchange_weak(former, version)) {
  }
  if (waiting_room().waiters.load() == 0) return;
  std::lock_guard lock(waiting_room().mutex);
  waiting_room().changed.notify_all();
}

std::shared_ptr<StreamFailure> Event::failure() const {
  if (!failed_.load()) return nullptr;
  std::lock_guard lock(waiting_room().mutex);
  return failure_ != nullptr && !failure_->reported.load() ? failure_ : nullptr;
}

void Event::demand() const {
  if (const auto owner = stream()) owner->demand();
}

void Event::wait(uint64_t version, const std::atomic<bool>* give_up) const {
  if (done(version)) return;
  demand();
  WaitingRoom& room = waiting_room();
  room.waiters.fetch_add(1);
  std::unique_lock lock(room.mutex);
  room.changed.wait(lock, [&] {
    return room.abandoned || completed_.load() >= version || (give_up != nullptr && *give_up);
  });
  lock.unlock();
  room.waiters.fetch_sub(1);
}

bool Event::wait_until(uint64_t version, std::chrono::steady_clock::time_point deadline) const {
  if (done(version)) return true;
  demand();
  WaitingRoom& room = waiting_room();
  room.waiters.fetch_add(1);
  std::unique_lock lock(room.mutex);
  const bool over = room.changed.wait_until(
      lock, deadline, [&] { return room.abandoned || completed_.load() >= version; });
  lock.unlock();
  room.waiters.fetch_sub(1);
  return over;
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
