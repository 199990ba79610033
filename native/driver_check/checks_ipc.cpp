// Memory that two processes have: this one, and this program started once more.
#include <dlfcn.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "driver/checked.h"
#include "driver/table.h"
#include "driver_check/other_process.h"
#include "driver_check/suite.h"

extern char** environ;

namespace bringup::driver_check {
namespace {

constexpr size_t kBytes = 100'000;

// The other process: shows what the memory holds, writes a pattern, says "!", ends with its input.
class Opener {
 public:
  Opener(const Context& context, const bringup_ipc_handle& handle) {
    int down[2];
    if (pipe(down) != 0 || pipe(up_) != 0) throw Skipped{"there are no pipes"};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, down[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, up_[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, down[1]);
    std::string program = "/proc/self/exe";
    std::string option = "--open-ipc";
    std::string library = context.library();
    char* words[] = {program.data(), option.data(), library.data(), nullptr};
    const int failed = posix_spawn(&process_, program.c_str(), &actions, nullptr, words, environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(down[0]);
    ::close(up_[1]);
    input_ = down[1];
    if (failed != 0) throw Skipped{"no other process can be started"};
    if (write(input_, &handle, sizeof handle) != sizeof handle) end(SIGKILL);
  }
  ~Opener() { end(SIGKILL); }
  Opener& operator=(Opener&&) = delete;

  Bytes read(size_t bytes) {
    Bytes found(bytes);
    size_t done = 0;
    while (done < bytes) {
      const ssize_t got = ::read(up_[0], found.data() + done, bytes - done);
      if (got <= 0) break;
      done += static_cast<size_t>(got);
    }
    expect(done == bytes, "the process that opened a handle ended early", "its memory",
           concat(done, " bytes of it"));
    return found;
  }
  // 0: it ended in order.
  int end(int signal) {
    if (process_ < 0) return 0;
    if (signal != 0) kill(process_, signal);
    ::close(input_);
    int status = 0;
    waitpid(process_, &status, 0);
    ::close(up_[0]);
    process_ = -1;
    return status;
  }

 private:
  pid_t process_ = -1;
  int input_ = -1;
  int up_[2] = {-1, -1};
};

bringup_ipc_handle export_of(Context& context, const Memory& memory) {
  bringup_ipc_handle handle{};
  context.must<&D::ipc_export>(0, static_cast<void*>(memory.data()), &handle);
  return handle;
}

void both_ways(Context& context) {
  const Memory before(context, 0, 1000);
  const Memory memory(context, 0, kBytes);
  const Bytes content = pattern(kBytes, 1);
  memory.upload(content);
  for (const int signal : {0, SIGKILL}) {
    Opener opener(context, export_of(context, memory));
    expect_bytes(opener.read(kBytes), content, "memory that another process opened");
    opener.read(1);
    memory.expect(pattern(kBytes, 2), "memory that another process wrote");
    const int status = opener.end(signal);
    expect(signal != 0 || status == 0, "the process that opened a handle failed at its end",
           "exit code 0", concat("status ", status));
    memory.upload(content);
  }
}

void unknown(Context& context) {
  const bringup_ipc_handle none{};
  void* address = nullptr;
  context.must_fail<&D::ipc_open>("for bytes that are no handle", 0, &none, &address);
  const Memory memory(context, 0, 4096);
  context.must_fail<&D::ipc_close>("for memory that was not opened", 0,
                                   static_cast<void*>(memory.data()));
  bringup_ipc_handle handle{};
  context.must_fail<&D::ipc_export>("for an address within an allocation", 0,
                                    static_cast<void*>(memory.data() + 64), &handle);
}

bool is_ok(int32_t status) { return status == BRINGUP_OK; }

}  // namespace

int open_for_other_process(const std::string& path) {
  const int output = dup(STDOUT_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);  // a driver may print
  bringup_ipc_handle handle{};
  if (read(STDIN_FILENO, &handle, sizeof handle) != sizeof handle) return 3;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return 3;
  const bringup_driver table = driver::checked(driver::read_table(
      reinterpret_cast<bringup_driver_get_fn>(dlsym(library, "bringup_driver_get"))));
  void* address = nullptr;
  if (table.init != nullptr && !is_ok(table.init())) return 3;
  if (!is_ok(table.ipc_open(0, &handle, &address))) return 4;
  Bytes bytes(kBytes);
  const auto copy = [&](bringup_copy_kind kind, void* to, const void* from) {
    return is_ok(table.copy_async(kind, 0, to, 0, from, kBytes, nullptr)) &&
           is_ok(table.stream_synchronize(0, nullptr));
  };
  if (!copy(BRINGUP_DEVICE_TO_HOST, bytes.data(), address)) return 5;
  if (write(output, bytes.data(), kBytes) != static_cast<ssize_t>(kBytes)) return 3;
  bytes = pattern(kBytes, 2);
  if (!copy(BRINGUP_HOST_TO_DEVICE, address, bytes.data())) return 6;
  if (write(output, "!", 1) != 1 || read(STDIN_FILENO, bytes.data(), 1) != 0) return 3;
  if (!is_ok(table.ipc_close(0, address))) return 7;
  return table.shutdown == nullptr || is_ok(table.shutdown()) ? 0 : 8;
}

std::vector<Check> ipc_checks() {
  return {
      {"ipc.both_ways", "ipc_open",
       "What was done in one process before another begins a piece of work is seen there; what a "
       "process has open when it ends counts as closed.",
       both_ways, "ipc_open"},
      {"ipc.unknown", "ipc_open", "A handle that is none fails.", unknown, "ipc_open"},
  };
}

}  // namespace bringup::driver_check
