#include "driver/trace_copies.h"

#include <algorithm>

namespace bringup::driver {
namespace {

void merge(PendingCopies::Clock& into, const PendingCopies::Clock& from) {
  for (const auto& [stream, position] : from) into[stream] = std::max(into[stream], position);
}

size_t extent(const TracedCopy& copy) {
  return copy.height == 0 ? 0 : (copy.height - 1) * copy.pitch + copy.width;
}

bool writes_to(const TracedCopy& copy, const std::byte* host, size_t bytes) {
  return copy.kind == BRINGUP_DEVICE_TO_HOST && copy.host < host + bytes &&
         host < copy.host + extent(copy);
}

}  // namespace

void PendingCopies::begin_capture(Stream stream) {
  const std::lock_guard lock(mutex_);
  captured_.insert(stream);
}

void PendingCopies::end_capture(Stream stream) {
  const std::lock_guard lock(mutex_);
  captured_.erase(stream);
}

void PendingCopies::add(TracedCopy copy, Stream stream) {
  const std::lock_guard lock(mutex_);
  if (captured_.contains(stream)) return;
  if (copy.kind == BRINGUP_DEVICE_TO_HOST) {
    for (Entry& entry : pending_) {
      if (writes_to(entry.copy, copy.host, extent(copy))) entry.copy.is_overwritten = true;
    }
  }
  const uint64_t position = ++streams_[stream][stream];
  pending_.push_back({copy, stream, position});
}

void PendingCopies::record(bringup_event event, Stream stream) {
  const std::lock_guard lock(mutex_);
  events_[event] = streams_[stream];
}

void PendingCopies::wait(bringup_event event, Stream stream) {
  const std::lock_guard lock(mutex_);
  if (const auto known = events_.find(event); known != events_.end()) {
    merge(streams_[stream], known->second);
  }
}

void PendingCopies::forget(bringup_event event) {
  const std::lock_guard lock(mutex_);
  events_.erase(event);
}

PendingCopies::Clock PendingCopies::after(Stream stream) const {
  const std::lock_guard lock(mutex_);
  const auto known = streams_.find(stream);
  return known != streams_.end() ? known->second : Clock{};
}

PendingCopies::Clock PendingCopies::after(bringup_event event) const {
  const std::lock_guard lock(mutex_);
  const auto known = events_.find(event);
  return known != events_.end() ? known->second : Clock{};
}

PendingCopies::Clock PendingCopies::after_device(int32_t device) const {
  const std::lock_guard lock(mutex_);
  Clock clock;
  for (const auto& [stream, known] : streams_) {
    if (stream.first == device) merge(clock, known);
  }
  return clock;
}

void PendingCopies::take(const Clock& done, const std::function<void(const TracedCopy&)>& visit) {
  const std::lock_guard lock(mutex_);
  const auto is_done = [&](const Entry& entry) {
    const auto known = done.find(entry.stream);
    return known != done.end() && entry.position <= known->second;
  };
  for (const Entry& entry : pending_) {
    if (is_done(entry)) visit(entry.copy);
  }
  std::erase_if(pending_, is_done);
}

bool PendingCopies::is_being_written(const void* host, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(pending_.begin(), pending_.end(), [&](const Entry& entry) {
    return writes_to(entry.copy, static_cast<const std::byte*>(host), bytes);
  });
}

}  // namespace bringup::driver
