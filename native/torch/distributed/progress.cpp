#include "torch/distributed/progress.h"

#include <utility>

namespace bringup::distributed {

void Progress::post() {
  const std::lock_guard lock(mutex_);
  posted_ = true;
  changed_.notify_all();
}

void Progress::end(std::exception_ptr error) {
  std::vector<AtEnd> calls;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true)) return;
    error_ = error;
    calls.swap(calls_);
    changed_.notify_all();
  }
  for (const AtEnd& call : calls) call(error);
}

void Progress::at_end(AtEnd call) {
  {
    const std::lock_guard lock(mutex_);
    if (!ended_) return calls_.push_back(std::move(call));
  }
  call(error_);  // which changes no more
}

bool Progress::is_posted() const {
  const std::lock_guard lock(mutex_);
  return posted_;
}

bool Progress::has_ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

std::exception_ptr Progress::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

bool Progress::wait_posted(std::optional<std::chrono::milliseconds> limit) const {
  std::unique_lock lock(mutex_);
  const auto is_over = [this] { return posted_ || ended_; };
  if (limit) return changed_.wait_for(lock, *limit, is_over);
  changed_.wait(lock, is_over);
  return true;
}

void Progress::wait_ended() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ended_; });
}

}  // namespace bringup::distributed
