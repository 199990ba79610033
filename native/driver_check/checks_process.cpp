// The process: children of fork, and the end while work is pending.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver_check/suite.h"

namespace bringup::driver_check {
namespace {

constexpr double kChildSeconds = 5;

// What a child of fork() calls; it exits with the number of the first call that did not fail, or 0.
int calls_in_child(Context& context, const Memory& memory, const Bytes& content) {
  void* address = nullptr;
  bringup_stream stream = nullptr;
  bringup_event event = nullptr;
  if (context.call<&D::mem_alloc>(0, size_t{64}, &address) == BRINGUP_OK) return 1;
  if (context.call<&D::stream_create>(0, 0, &stream) == BRINGUP_OK) return 2;
  if (context.call<&D::event_create>(0, 0, &event) == BRINGUP_OK) return 3;
  if (context.call<&D::copy_async>(BRINGUP_HOST_TO_DEVICE, 0, memory.data(), 0, content.data(),
                                   content.size(), nullptr) == BRINGUP_OK) {
    return 4;
  }
  if (context.call<&D::stream_synchronize>(0, nullptr) == BRINGUP_OK) return 5;
  return 0;
}

int wait_for(pid_t child) {
  const double deadline = now_seconds() + kChildSeconds;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (now_seconds() > deadline) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      throw Failure("a call in a child of fork() has not returned after 5 s", "a failure",
                    "it hangs");
    }
    pause_milliseconds(1);
  }
  return status;
}

void forked_child(Context& context) {
  const Memory memory(context, 0, 4096);
  const Bytes content = pattern(4096, 1);
  const Stream stream(context);
  memory.upload(content, stream);
  const pid_t child = fork();
  if (child == 0) {
    int code = 99;
    try {
      code = calls_in_child(context, memory, content);
    } catch (const Failure&) {
    }
    _exit(code);
  }
  const int status = wait_for(child);
  expect(!WIFSIGNALED(status),
         concat("a call in a child of fork() ended it with signal ", WTERMSIG(status)), "a failure",
         "a crash");
  constexpr const char* kCalls[] = {
      "", "mem_alloc", "stream_create", "event_create", "copy_async", "stream_synchronize"};
  const int code = WEXITSTATUS(status);
  if (code >= 1 && code <= 5) {
    throw Failure(std::string(kCalls[code]) + " returned BRINGUP_OK in a child of fork()",
                  "BRINGUP_ERROR", "BRINGUP_OK");
  }
  expect(code == 0, "a call in a child of fork() broke another rule", "BRINGUP_ERROR",
         concat("exit code ", code));
  memory.expect(content, "memory of the parent after a fork()", stream);
}

// Nothing is waited for: the process ends right after this.
void end_while_pending(Context& context) {
  const size_t bytes = context.at_most(size_t{4} << 20);
  // What is copied from stays until the very end.
  static const auto& content = *new Bytes(pattern(bytes, 1));
  void* address = nullptr;
  context.must<&D::mem_alloc>(0, bytes, &address);
  for (int i = 0; i < 6; ++i) {
    bringup_stream stream = nullptr;
    context.must<&D::stream_create>(0, 0, &stream);
    for (int round = 0; round < 8; ++round) {
      context.must<&D::copy_async>(BRINGUP_HOST_TO_DEVICE, 0, address, 0, content.data(), bytes,
                                   stream);
    }
  }
}

}  // namespace

std::vector<Check> process_checks() {
  return {
      {"process.forked_child", "mem_alloc",
       "A child of fork() cannot use the driver: every function that needs the device returns "
       "BRINGUP_ERROR.",
       forked_child},
      {"process.end_while_pending", "copy_async",
       "When the process ends, whatever still runs is dropped quietly.", end_while_pending},
  };
}

}  // namespace bringup::driver_check
