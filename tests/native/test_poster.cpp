// The poster of a process group with a gloo of the test's own: threads that complete what they are
// given, late and in any order. ThreadSanitizer has it under `make tsan`.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "torch/distributed/poster.h"

using bringup::distributed::Job;
using bringup::distributed::Poster;

namespace {

std::exception_ptr refusal(const std::exception_ptr& cause) {
  return std::make_exception_ptr(std::string(cause ? "broken" : "destroyed"));
}

// An event of a device.
class Event {
 public:
  bool query() const { return done_; }
  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_.load(); });
    if (fails_) throw std::string("failed before");
  }
  void complete(bool fails = false) {
    const std::lock_guard lock(mutex_);
    fails_ = fails;
    done_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> done_{false};
  bool fails_ = false;
};

// What became of each job, in the order of the posts.
struct Gloo {
  void post(int number) {
    const std::lock_guard lock(mutex);
    posted.push_back(number);
    threads.emplace_back([this] { ++completed; });  // the callback of a future
  }
  void fail(std::exception_ptr error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::string& text) {
      const std::lock_guard lock(mutex);
      failures.push_back(text);
    }
  }
  ~Gloo() {
    for (std::thread& thread : threads) thread.join();
  }

  std::mutex mutex;
  std::vector<int> posted;
  std::vector<std::string> failures;
  std::vector<std::thread> threads;
  std::atomic<int> completed{0};
};

Job job(Gloo& gloo, Event& before, int number) {
  return {[&] { return before.query(); }, [&] { before.synchronize(); },
          [&gloo, number] { gloo.post(number); },
          [&gloo](std::exception_ptr error) { gloo.fail(std::move(error)); }};
}

std::vector<int> first(int count) {
  std::vector<int> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(i);
  return numbers;
}

}  // namespace

TEST(what_nothing_precedes_is_posted_on_the_calling_thread) {
  Gloo gloo;
  Event done;
  done.complete();
  Poster poster(refusal);
  poster.submit(job(gloo, done, 0));
  CHECK(gloo.posted == first(1));
}

TEST(jobs_are_posted_in_the_order_of_the_calls_whatever_is_ready_first) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    constexpr int kJobs = 40;
    Gloo gloo;
    std::vector<Event> before(kJobs);
    std::thread device([&] {  // its streams end in an order of their own
      std::mt19937 random(seed);
      std::vector<int> order = first(kJobs);
      std::shuffle(order.begin(), order.end(), random);
      for (const int number : order) {
        before[static_cast<size_t>(number)].complete();
        if (random() % 4 == 0) std::this_thread::yield();
      }
    });
    {
      Poster poster(refusal);
      for (int i = 0; i < kJobs; ++i) poster.submit(job(gloo, before[static_cast<size_t>(i)], i));
      device.join();
      for (bool over = false; !over; std::this_thread::yield()) {
        const std::lock_guard lock(gloo.mutex);
        over = gloo.posted.size() == kJobs;
      }
    }
    CHECK(gloo.posted == first(kJobs));
  }
}

TEST(a_ready_job_does_not_overtake_one_that_is_being_posted) {
  Gloo gloo;
  Event before;
  Event started;
  Event gate;
  Event done;
  done.complete();
  Poster poster(refusal);
  Job slow = job(gloo, before, 0);
  slow.post = [&] {
    started.complete();
    gate.synchronize();
    gloo.post(0);
  };
  poster.submit(std::move(slow));
  before.complete();
  started.synchronize();
  poster.submit(job(gloo, done, 1));
  gate.complete();
  for (bool over = false; !over; std::this_thread::yield()) {
    const std::lock_guard lock(gloo.mutex);
    over = gloo.posted.size() == 2;
  }
  CHECK(gloo.posted == first(2));
}

TEST(each_threads_jobs_keep_their_order) {
  constexpr int kThreads = 4;
  constexpr int kJobs = 200;
  Gloo gloo;
  Event done;
  done.complete();
  Poster poster(refusal);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kJobs; ++i) poster.submit(job(gloo, done, thread * kJobs + i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (bool over = false; !over; std::this_thread::yield()) {
    const std::lock_guard lock(gloo.mutex);
    over = gloo.posted.size() == kThreads * kJobs;
  }
  std::vector<int> last(kThreads, -1);
  for (const int number : gloo.posted) {
    int& former = last[static_cast<size_t>(number / kJobs)];
    CHECK(number > former);
    former = number;
  }
}

// Its peers would take the next for it.
TEST(after_a_job_that_fails_there_is_no_other) {
  for (const bool fails_in_post : {false, true}) {
    Gloo gloo;
    Event before;
    Event done;
    done.complete();
    Poster poster(refusal);
    Job failing = job(gloo, before, 0);
    if (fails_in_post) failing.post = [] { throw std::string("failed in post"); };
    poster.submit(std::move(failing));
    poster.submit(job(gloo, done, 1));
    before.complete(!fails_in_post);
    for (bool over = false; !over; std::this_thread::yield()) {
      const std::lock_guard lock(gloo.mutex);
      over = gloo.failures.size() == 2;
    }
    poster.submit(job(gloo, done, 2));
    CHECK(gloo.posted.empty());
    const std::string first = fails_in_post ? "failed in post" : "failed before";
    CHECK(gloo.failures == (std::vector<std::string>{first, "broken", "broken"}));
  }
}

TEST(after_a_job_that_fails_on_the_calling_thread_there_is_no_other) {
  Gloo gloo;
  Event done;
  done.complete();
  Poster poster(refusal);
  Job failing = job(gloo, done, 0);
  failing.post = [] { throw std::string("failed in post"); };
  poster.submit(std::move(failing));
  poster.submit(job(gloo, done, 1));
  CHECK(gloo.posted.empty());
  CHECK(gloo.failures == (std::vector<std::string>{"failed in post", "broken"}));
}

TEST(a_stop_fails_what_waits_and_what_comes_later) {
  Gloo gloo;
  std::vector<Event> before(3);
  Event done;
  done.complete();
  Poster poster(refusal);
  for (int i = 0; i < 3; ++i) poster.submit(job(gloo, before[static_cast<size_t>(i)], i));
  std::thread device([&] {
    for (Event& event : before) event.complete();
  });
  std::thread late([&] { poster.submit(job(gloo, done, 3)); });
  poster.stop();
  device.join();
  late.join();
  poster.submit(job(gloo, done, 4));
  CHECK_EQ(gloo.posted.size() + gloo.failures.size(), size_t{5});
  CHECK(gloo.posted == first(static_cast<int>(gloo.posted.size())));
  CHECK(!gloo.failures.empty());
  for (const std::string& text : gloo.failures) CHECK_EQ(text, std::string("destroyed"));
}
