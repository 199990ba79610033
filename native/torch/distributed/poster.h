// Hands the collectives of one group to gloo, in the order of the calls, each when what was queued
// before it is done. It never waits for gloo. After one that could not be handed over there are no
// more: peers would take the next for it. No torch: the order is tested without it.
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
  std::function<void()> post;
  std::function<void(std::exception_ptr)> fail;
};

class Poster {
 public:
  // `refusal`: the error of jobs that come too late, after what failed, or null after a stop.
  explicit Poster(std::function<std::exception_ptr(const std::exception_ptr&)> refusal)
      : make_refusal_(std::move(refusal)) {}
  Poster(const Poster&) = delete;
  Poster& operator=(const Poster&) = delete;
  ~Poster() { stop(); }

  // At once on the calling thread where nothing is to be waited for.
  void submit(Job job);
  // Fails what still waits, and everything that comes later.
  void break_off(const std::exception_ptr& cause);
  // The same; returns when no job runs.
  void stop();

 private:
  void run();
  void carry_out(Job& job);

  const std::function<std::exception_ptr(const std::exception_ptr&)> make_refusal_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool busy_ = false;           // a job is being posted, by whichever thread
  std::exception_ptr refusal_;  // null: it goes on
  std::thread thread_;
};

}  // namespace bringup::distributed
