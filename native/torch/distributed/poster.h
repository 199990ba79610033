// Hands the collectives of one group to gloo, in the order of the calls, each when what was queued
// before it is done. It never waits for gloo.
#pragma once

#include <c10/core/Event.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace bringup::distributed {

struct Job {
  std::vector<c10::Event> before;  // what was queued when it was asked for
  std::function<void()> post;      // raises nothing
  std::function<void(std::exception_ptr)> fail;
};

class Poster {
 public:
  Poster() = default;
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

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool busy_ = false;  // a job is being posted, by whichever thread
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace bringup::distributed
