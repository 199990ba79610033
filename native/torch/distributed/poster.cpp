#include "torch/distributed/poster.h"

#include <pthread.h>

#include <utility>

namespace bringup::distributed {

void Poster::submit(Job job) {
  std::unique_lock lock(mutex_);
  if (!refusal_ && jobs_.empty() && !busy_ && job.is_ready()) {
    busy_ = true;
    lock.unlock();
    carry_out(job);
    lock.lock();
    busy_ = false;
    changed_.notify_all();
    return;
  }
  if (refusal_) {
    lock.unlock();
    job.fail(refusal_);
    return;
  }
  jobs_.push_back(std::move(job));
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
}

void Poster::break_off(const std::exception_ptr& cause) {
  std::deque<Job> left;
  {
    const std::lock_guard lock(mutex_);
    if (!refusal_) refusal_ = make_refusal_(cause);
    left.swap(jobs_);
    changed_.notify_all();
  }
  for (Job& job : left) job.fail(refusal_);
}

void Poster::stop() {
  break_off(nullptr);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !busy_; });
  }
  if (thread_.joinable()) thread_.join();
}

void Poster::run() {
  pthread_setname_np(pthread_self(), "bringup_c10d");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return refusal_ || (!jobs_.empty() && !busy_); });
    if (refusal_) return;
    {
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      busy_ = true;
      lock.unlock();
      carry_out(job);
    }  // tensors that it held end without the lock
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

void Poster::carry_out(Job& job) {
  try {
    job.wait();
    job.post();
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    job.fail(error);
    break_off(error);
  }
}

}  // namespace bringup::distributed
