#include "driver_check/journal.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace bringup::driver_check {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

namespace {

thread_local const char* t_activity = nullptr;
std::atomic<Journal*> g_journal{nullptr};

template <size_t kSize>
void put(char (&into)[kSize], const std::string& text) {
  const size_t length = std::min(text.size(), kSize - 1);
  std::memcpy(into, text.data(), length);
  into[length] = '\0';
}

void on_crash(int signal) {
  if (Journal* journal = g_journal.load()) journal->crashed(signal, t_activity);
  raise(signal);  // the handler is gone by now: the process ends as it would have
}

}  // namespace

void Journal::begin(const char* activity) {
  seconds_ = now_seconds();
  outcome_ = static_cast<uint32_t>(Outcome::kRunning);
  set_activity(activity);
}

void Journal::note_failure(const std::string& reason, const std::string& expected,
                           const std::string& got) {
  if (failing_.exchange(1) != 0) return;
  put(reason_, reason);
  put(expected_, expected);
  put(got_, got);
  failed_ = 1;
}

void Journal::end(Outcome outcome, const std::string& reason) {
  if (!has_failure()) put(reason_, reason);
  seconds_ = now_seconds() - seconds_;
  outcome_ = static_cast<uint32_t>(outcome);
}

CallLine* Journal::call(const char* function, const std::string& text) {
  if (has_failure()) return &after_failure_;
  for (uint32_t tried = 0; tried < kFirst + kLast; ++tried) {
    CallLine& line = const_cast<CallLine&>(this->line(count_.fetch_add(1)));
    uint32_t state = line.state;
    if (state != CallLine::kEmpty && state != CallLine::kDone) continue;
    if (!line.state.compare_exchange_strong(state, CallLine::kWritten)) continue;
    put(line.function, function);
    put(line.text, text);
    line.state = CallLine::kBegun;
    return &line;
  }
  return &after_failure_;
}

void Journal::done(CallLine* line, const std::string& result) {
  if (line->state == CallLine::kEmpty) return;  // after a failure
  const size_t length = strnlen(line->text, sizeof line->text - 1);
  std::snprintf(line->text + length, sizeof line->text - length, "%s", result.c_str());
  line->state = CallLine::kDone;
}

const CallLine& Journal::line(uint32_t number) const {
  return lines_[number < kFirst ? number : kFirst + (number - kFirst) % kLast];
}

std::vector<std::string> Journal::calls() const {
  std::vector<std::string> found;
  const uint32_t count = count_.load();
  const uint32_t tail = count > kFirst + kLast ? count - kLast : std::min(count, kFirst);
  const auto add = [&](uint32_t number) {
    const CallLine& one = line(number);
    if (one.state == CallLine::kEmpty || one.state == CallLine::kWritten) return;
    const bool open = one.state == CallLine::kBegun;
    found.push_back(std::string(one.text) + (open ? " has not returned" : ""));
  };
  for (uint32_t number = 0; number < std::min(count, kFirst); ++number) add(number);
  if (tail > kFirst) found.push_back("... " + std::to_string(tail - kFirst) + " calls ...");
  for (uint32_t number = std::max(tail, kFirst); number < count; ++number) add(number);
  return found;
}

bool Journal::inside_call() const {
  for (const CallLine& one : lines_) {
    if (one.state == CallLine::kBegun) return true;
  }
  return false;
}

std::string Journal::last_function() const {
  for (const CallLine& one : lines_) {
    if (one.state == CallLine::kBegun) return one.function;
  }
  const uint32_t count = count_.load();
  return count > 0 ? line(count - 1).function : "";
}

void Journal::crashed(int signal, const char* where) {
  if (signal_.exchange(signal) != 0) return;
  if (where != nullptr) std::memcpy(place_, where, strnlen(where, sizeof place_ - 1));
}

void set_activity(const char* activity) { t_activity = activity; }

void set_current_journal(Journal* journal) { g_journal = journal; }
Journal* current_journal() { return g_journal.load(); }

void install_crash_handlers() {
  static char stack[64 << 10];
  stack_t alternative{};
  alternative.ss_sp = stack;
  alternative.ss_size = sizeof stack;
  sigaltstack(&alternative, nullptr);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    struct sigaction action {};
    action.sa_handler = &on_crash;
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_ONSTACK | SA_NODEFER);
    sigaction(signal, &action, nullptr);
  }
}

}  // namespace bringup::driver_check
