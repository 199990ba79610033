#include "driver_check/parent.h"

#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>
#include <utility>

#include "driver_check/suite.h"

extern char** environ;

namespace bringup::driver_check {
namespace {

struct Mapping {
  int file = -1;
  SharedMemory* memory = nullptr;
  size_t bytes = 0;

  Mapping() : bytes(SharedMemory::bytes(suite().size())) {
    file = memfd_create("bringup-driver-check", 0);  // inherited by the child
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) {
      throw std::runtime_error("no shared memory for a child");
    }
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) throw std::runtime_error("no shared memory for a child");
    memory = static_cast<SharedMemory*>(at);
  }
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    munmap(memory, bytes);
    close(file);
  }
};

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

// In a process group of its own, so that its own children end with it.
pid_t spawn(const std::string& program, std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  pid_t child = 0;
  const int error =
      posix_spawnp(&child, program.c_str(), nullptr, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) throw std::runtime_error(std::string("no child process: ") + strerror(error));
  return child;
}

// The file of this program, for an emulator, which is itself what the kernel runs.
std::string own_file() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length < 0) throw std::runtime_error("/proc/self/exe cannot be read");
  return {path, static_cast<size_t>(length)};
}

pid_t start_child(const Launch& launch, std::vector<std::string> options) {
  if (launch.emulator.empty()) {
    options.insert(options.begin(), "bringup-driver-check");
    return spawn("/proc/self/exe", std::move(options));
  }
  std::vector<std::string> words = launch.emulator;
  words.push_back(own_file());
  words.insert(words.end(), options.begin(), options.end());
  return spawn(launch.emulator.front(), std::move(words));
}

struct End {
  bool hung = false;
  int status = 0;  // as waitpid gives it
};

// Each check has its own limit, and so has the start.
End wait_for(pid_t child, const SharedMemory& memory, const Limits& limits) {
  uint32_t seen = 0;
  bool started = false;
  double deadline = now_seconds() + limits.start_seconds;
  End end;
  siginfo_t ended{};
  while (waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         ended.si_pid == 0) {
    if (started != (memory.started.load() != 0) || seen != memory.progress.load()) {
      started = memory.started.load() != 0;
      seen = memory.progress.load();
      deadline = now_seconds() + limits.check_seconds;
    }
    if (now_seconds() > deadline) {
      end.hung = true;
      break;
    }
    usleep(500);
  }
  kill(-child,
       SIGKILL);  // with what it left behind; not reaped yet, so the number is still its own
  waitpid(child, &end.status, 0);
  return end;
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return text;
}

std::string signal_name(int signal) {
  if (signal == SIGSEGV) return "SIGSEGV";
  if (signal == SIGBUS) return "SIGBUS";
  if (signal == SIGABRT) return "SIGABRT";
  if (signal == SIGFPE) return "SIGFPE";
  if (signal == SIGILL) return "SIGILL";
  return "signal " + std::to_string(signal);
}

// Where the process was when it ended.
std::string place_of(const Journal& journal) {
  if (!journal.crash_place().empty()) return "in " + journal.crash_place();
  const std::string last = journal.last_function();
  if (journal.inside_call() && journal.crash_signal() == 0) return "in " + last;
  if (last.empty()) return "before any call";
  return "in a thread of the driver's own, after " + last;
}

// Why a check did not come to its end.
std::string how_it_ended(const Journal& journal, const End& end, double limit) {
  if (end.hung) {
    const std::string last = journal.last_function();
    if (journal.inside_call()) return last + " has not returned after " + seconds_text(limit);
    return concat("it has not ended after ", seconds_text(limit),
                  (last.empty() ? "" : ", the last call was " + last));
  }
  const int signal = WIFSIGNALED(end.status) ? WTERMSIG(end.status) : journal.crash_signal();
  if (signal != 0) return "crashed with " + signal_name(signal) + " " + place_of(journal);
  return concat("the driver ended the process with exit code ", WEXITSTATUS(end.status), " ",
                place_of(journal));
}

Result result_of(const Check& check, const Journal& journal, const End& end, double limit) {
  Result result{check.name,         journal.outcome(), check.function,  journal.reason(),
                journal.expected(), journal.got(),     journal.calls(), journal.seconds()};
  const bool ended = result.outcome != Outcome::kRunning;
  if (!ended) {
    result.outcome = Outcome::kFail;
    result.seconds = now_seconds() - result.seconds;
    if (!journal.has_failure()) {
      result.reason = how_it_ended(journal, end, limit);
      result.expected = "the check comes to its end";
      result.got = end.hung ? "it hangs" : "the process ended";
    }
  }
  if (result.outcome == Outcome::kFail) {
    // The function whose call broke the rule, where one is named in front of what it did.
    const std::string first = result.reason.substr(0, result.reason.find(' '));
    if (find_field(first.c_str()) != nullptr) result.function = first;
  }
  return result;
}

}  // namespace

Report run_child(const Launch& launch, const std::vector<std::string>& names,
                 const Limits& limits) {
  const Mapping mapping;
  SharedMemory& memory = *mapping.memory;
  const pid_t child = start_child(
      launch,
      {"--child", std::to_string(mapping.file), "--kernels=" + launch.kernels.host,
       "--device-kernels=" + launch.kernels.device, "--only=" + joined(names), launch.library});
  const End end = wait_for(child, memory, limits);
  Report report;
  report.sheet = memory.sheet;
  if (memory.started == 0) {
    const Journal& start = memory.startup;
    report.start_failure =
        start.has_failure() ? start.reason() : how_it_ended(start, end, limits.start_seconds);
    report.start_function = start.last_function();
    report.start_calls = start.calls();
    return report;
  }
  const bool bad_end = end.hung || end.status != 0;
  if (bad_end && names.empty()) {
    report.end_failure = how_it_ended(memory.startup, end, limits.check_seconds);
  }
  for (size_t i = 0; i < suite().size(); ++i) {
    const Journal& journal = memory.journals[i];
    if (journal.outcome() == Outcome::kNotRun) continue;
    report.results.push_back(result_of(suite()[i], journal, end, limits.check_seconds));
  }
  // All checks were made, and then the process did not end as it should have.
  const bool complete = !report.results.empty() && report.results.size() == names.size();
  if (bad_end && complete && report.results.back().outcome == Outcome::kPass) {
    Result& last = report.results.back();
    last.outcome = Outcome::kFail;
    last.reason = end.hung ? concat("the process has not ended ",
                                    seconds_text(limits.check_seconds), " after the check")
                           : concat("the end of the process: ",
                                    how_it_ended(memory.journals[0], end, limits.check_seconds));
    last.expected = "the process ends in an ordinary way";
    last.got = end.hung ? "it hangs" : "it does not";
  }
  return report;
}

}  // namespace bringup::driver_check
