#include "torch/distributed/poster.h"

#include <pthread.h>

#include <utility>

namespace bringup::distributed {

void Poster::submit(Job job) {
  std::unique_lock lock(mutex_);
  if (!stopped_ && jobs_.empty() && !busy_ && job.is_ready()) {
    busy_ = true;
    lock.unlock();
    carry_out(job);
    lock.lock();
    busy_ = false;
    changed_.notify_all();
    return;
  }
  if (stopped_) {
    lock.unlock();
    job.fail(destroyed_());
    return;
  }
  jobs_.push_back(std::move(job));
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
}

void Poster::stop() {
  std::deque<Job> left;
  {
    std::unique_lock lock(mutex_);
    stopped_ = true;
    left.swap(jobs_);
    changed_.notify_all();
    changed_.wait(lock, [this] { return !busy_; });
  }
  if (thread_.joinable()) thread_.join();
  for (Job& job : left) job.fail(destroyed_());
}

void Poster::run() {
  pthread_setname_np(pthread_self(), "bringup_c10d");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopped_ || (!jobs_.empty() && !busy_); });
    if (stopped_) return;
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
  } catch (...) {  // what failed in the stream
    job.fail(std::current_exception());
    return;
  }
  job.post();
}

}  // namespace bringup::distributed
