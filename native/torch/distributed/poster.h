// Hands the collectives of one group to gloo, in the order of the calls, each when what was queued
// before it is done. It never waits for gloo. No torch: the order is tested without it.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace bringup::distributed {

struct Job {
  std::function<bool()> is_ready;  // what was queued before it is done
  std::function<void()> wait;      // until it is; raises what failed there
  std::function<void()> post;      // raises nothing
  std::function<void(std::exception_ptr)> fail;
};

class Poster {
 public:
  // `destroyed`: the error of jobs that come too late.
  explicit Poster(std::function<std::exception_ptr()> destroyed)
      : destroyed_(std::move(destroyed)) {}
  Poster(const Poster&) = delete;
  Poster& operator=(const Poster&) = delete;
  ~Poster() { stop(); }

  // At once on the calling thread where nothing is to be waited for.
  void submit(Job job);
  // Fails what still waits, and everything that comes later. Returns when no job runs.
  void stop();

 private:
  void run();
  static void carry_out(Job& job);

  const std::function<std::exception_ptr()> destroyed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool busy_ = false;  // a job is being posted, by whichever thread
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace bringup::distributed
