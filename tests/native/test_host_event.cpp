// Events between threads: the n-th wait takes the n-th record.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "check.h"
#include "driver/host_event.h"

namespace {

using bringup::driver::HostEvent;
using Taken = HostEvent::Taken;
using namespace std::chrono_literals;

TEST(records_before_waits_are_kept) {
  HostEvent event;
  event.record();
  event.record();
  CHECK(event.ahead() == 2);
  CHECK(event.take(10s) == Taken::kYes);
  CHECK(event.take(10s) == Taken::kYes);
  CHECK(event.ahead() == 0);
}

TEST(a_wait_ends_at_its_limit_and_its_record_is_nobodys) {
  HostEvent event;
  CHECK(event.take(1ms) == Taken::kTooLate);
  event.record();
  CHECK(event.ahead() == 0);
  CHECK(event.take(1ms) == Taken::kTooLate);
  event.record();
  event.record();
  CHECK(event.take(10s) == Taken::kYes);
}

TEST(a_skipped_record_is_not_the_next_waits) {
  HostEvent event;
  event.skip();
  event.record();
  CHECK(event.take(1ms) == Taken::kTooLate);
}

TEST(reset_ends_waits_and_forgets_records) {
  HostEvent event;
  event.record();
  event.reset();
  CHECK(event.ahead() == 0);
  std::thread waiting([&] { CHECK(event.take(60s) == Taken::kReset); });
  while (event.ahead() == 0) std::this_thread::yield();
  event.reset();
  waiting.join();
  event.record();
  CHECK(event.take(10s) == Taken::kYes);
}

TEST(every_record_of_many_threads_is_taken_once) {
  constexpr int kEach = 2000;
  HostEvent event;
  std::atomic<int> taken{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < kEach; ++n) event.record();
    });
    threads.emplace_back([&] {
      for (int n = 0; n < kEach; ++n) taken += event.take(60s) == Taken::kYes;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(taken == 3 * kEach);
  CHECK(event.ahead() == 0);
}

}  // namespace
