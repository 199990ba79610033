// The progress of collectives behind a poster, with a gloo of the test's own that ends them on
// threads of its: who waits, asks and hangs on is on others. ThreadSanitizer has it.
#include <array>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "torch/distributed/poster.h"
#include "torch/distributed/progress.h"

using bringup::distributed::Job;
using bringup::distributed::Poster;
using bringup::distributed::Progress;
using std::chrono::milliseconds;

namespace {

std::exception_ptr error(const char* text) { return std::make_exception_ptr(std::string(text)); }

std::string text_of(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::string& text) {
    return text;
  }
}

// What a collective writes, as its work keeps it: plain memory that the end makes visible.
struct Work {
  Progress progress;
  int inner = 0;   // once it is posted
  int result = 0;  // once it has ended
};

// Looks at a work as users do, until it has ended.
void use(Work& work, std::atomic<int>& calls) {
  work.progress.at_end([&](const std::exception_ptr& error) {
    if (!error) CHECK_EQ(work.result, 7);
    ++calls;
  });
  CHECK(work.progress.wait_posted(std::nullopt));
  if (work.progress.is_posted()) CHECK_EQ(work.inner, 5);
  work.progress.wait_ended();
  CHECK(work.progress.has_ended());
  if (!work.progress.error()) CHECK_EQ(work.result, 7);
  work.progress.at_end([&](const std::exception_ptr&) { ++calls; });
}

}  // namespace

TEST(what_was_posted_and_what_ended_is_seen_by_all_who_wait) {
  for (int round = 0; round < 50; ++round) {
    Work work;
    std::atomic<int> calls{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) threads.emplace_back([&] { use(work, calls); });
    work.inner = 5;
    work.progress.post();
    threads.emplace_back([&] {
      work.result = 7;
      work.progress.end(nullptr);
    });
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(calls.load(), 6);
  }
}

TEST(the_first_end_stands_and_is_told_once) {
  for (int round = 0; round < 50; ++round) {
    Progress progress;
    std::array<std::string, 2> told;
    progress.at_end([&](const std::exception_ptr& error) { told[0] += text_of(error); });
    std::thread other([&] { progress.end(error("a")); });
    progress.end(error("b"));
    other.join();
    progress.at_end([&](const std::exception_ptr& error) { told[1] += text_of(error); });
    const std::string stands = text_of(progress.error());
    CHECK(stands == "a" || stands == "b");
    CHECK_EQ(told[0], stands);
    CHECK_EQ(told[1], stands);
  }
}

TEST(a_wait_for_the_post_ends_with_its_time_or_with_a_failure) {
  Progress progress;
  CHECK(!progress.wait_posted(milliseconds(1)));
  CHECK(!progress.has_ended());
  progress.end(error("broken"));
  CHECK(progress.wait_posted(milliseconds(0)));
  CHECK(!progress.is_posted());
}

TEST(who_hangs_on_may_ask_and_hang_on_again) {
  Progress progress;
  bool is_told = false;
  progress.at_end([&](const std::exception_ptr&) {
    CHECK(progress.has_ended());
    progress.at_end([&](const std::exception_ptr&) { is_told = true; });
  });
  progress.end(nullptr);
  CHECK(is_told);
}

// Some fail in the post, and with them all that come later; a group ends amid them.
TEST(works_behind_a_poster_all_end_once) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    constexpr int kWorks = 30;
    std::mt19937 random(seed);
    const int fails = static_cast<int>(random() % (2 * kWorks));
    const auto stops = static_cast<int>(random() % (2 * kWorks));
    std::vector<Work> works(kWorks);
    std::vector<std::atomic<int>> calls(kWorks);
    std::vector<std::thread> users;
    std::vector<std::thread> gloo;
    std::mutex gloo_mutex;
    Poster poster([](const std::exception_ptr&) { return error("refused"); });
    for (int i = 0; i < kWorks; ++i) {
      Work& work = works[static_cast<size_t>(i)];
      Job job;
      job.is_ready = [ready = random() % 2 == 0] { return ready; };
      job.wait = [] { std::this_thread::yield(); };
      job.fail = [&](std::exception_ptr why) { work.progress.end(std::move(why)); };
      job.post = [&, i] {
        if (i == fails) throw std::string("failed in post");
        work.inner = 5;
        work.progress.post();
        const std::lock_guard lock(gloo_mutex);
        gloo.emplace_back([&] {
          work.result = 7;
          work.progress.end(nullptr);
        });
      };
      poster.submit(std::move(job));
      users.emplace_back([&, i] { use(work, calls[static_cast<size_t>(i)]); });
      if (i == stops) users.emplace_back([&] { poster.stop(); });
    }
    for (std::thread& user : users) user.join();
    poster.stop();
    for (std::thread& thread : gloo) thread.join();
    for (const auto& count : calls) CHECK_EQ(count.load(), 2);
    for (int i = 0; i < kWorks; ++i) {
      const std::string why = text_of(works[static_cast<size_t>(i)].progress.error());
      CHECK(why.empty() ? i != fails : i >= fails || stops < kWorks);
    }
  }
}
