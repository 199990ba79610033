// What `bringup driver check` writes down of calls: many more than there are lines, of many
// threads.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "driver_check/journal.h"

using bringup::driver_check::CallLine;
using bringup::driver_check::Journal;

namespace {

constexpr int kLines = 144;  // of a journal

void make(Journal& journal, const std::string& name) {
  CallLine* line = journal.call("made", name);
  Journal::done(line, " -> " + name);
}

TEST(a_call_that_has_not_ended_keeps_its_line_however_many_others_end) {
  const auto journal = std::make_unique<Journal>();
  for (int i = 0; i < kLines; ++i) make(*journal, std::to_string(i));
  CallLine* open = journal->call("open", "open");
  for (int i = 0; i < 4 * kLines; ++i) make(*journal, std::to_string(i));
  CHECK_EQ(journal->last_function(), "open");
  Journal::done(open, " -> ended");
  CHECK_EQ(std::string(open->text), "open -> ended");
  CHECK(!journal->inside_call());
  CHECK_EQ(journal->calls().back(), "575 -> 575");
}

TEST(where_every_line_has_an_open_call_the_others_are_left_out) {
  const auto journal = std::make_unique<Journal>();
  std::vector<CallLine*> open;
  for (int i = 0; i < kLines; ++i) open.push_back(journal->call("open", std::to_string(i)));
  make(*journal, "left out");
  for (CallLine* line : open) Journal::done(line, " -> 0");
  for (size_t i = 0; i < open.size(); ++i) {
    CHECK_EQ(std::string(open[i]->text), std::to_string(i) + " -> 0");
  }
  make(*journal, "last");
  CHECK_EQ(journal->calls().back(), "last -> last");
}

TEST(lines_of_many_threads_are_whole) {
  const auto journal = std::make_unique<Journal>();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 2000; ++i) {
        const std::string name = std::to_string(thread) + ":" + std::to_string(i);
        CallLine* line = journal->call("made", name);
        Journal::done(line, " -> 0");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& line : journal->calls()) {
    if (line.find("...") == std::string::npos && line.find(" -> 0") + 5 != line.size()) ++wrong;
  }
  CHECK_EQ(wrong.load(), 0);
}

}  // namespace
