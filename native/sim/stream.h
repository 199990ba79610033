// A stream: a queue of tasks and the worker thread that runs them in order. The thread starts with
// the first task.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "sim/communicator.h"
#include "sim/event.h"
#include "sim/kernel_run.h"
#include "sim/launch_copy.h"
#include "sim/stream_priorities.h"
#include "sim/values_launch.h"
#include "sim/work_log.h"

namespace bringup::sim {

class Graph;
struct GraphKernels;

// How many launches behind a wait the caller performs: who waits for each few of them has nothing
// else to do, and who does not wait shall go on.
constexpr int kLaunchesBehindWait = 8;

// Addresses in tasks are the worker's.
struct CopyTask {
  void* dst;
  const void* src;
  size_t bytes;
};
struct RowCopyTask {
  std::byte* dst;
  size_t dst_pitch;
  const std::byte* src;
  size_t src_pitch;
  size_t width;
  size_t height;
};
struct FillTask {
  void* dst;
  uint8_t value;
  size_t bytes;
};
struct WideFillTask {
  std::byte* dst;
  std::array<std::byte, 16> pattern;
  uint32_t size;
  size_t count;
};
struct HostTask {
  void (*fn)(void* user);
  void* user;
};
struct RecordTask {
  std::shared_ptr<EventRecord> record;
};
struct WaitTask {
  std::shared_ptr<EventRecord> record;
};
// On the heap: it is many times as large as any other task.
using OwnedValues = std::unique_ptr<const ValuesLaunch>;
struct GraphTask {
  std::shared_ptr<Graph> graph;
  std::shared_ptr<const GraphKernels> kernels;
};
struct CommTask {
  using Operation = std::variant<Exchange, Reduce, std::string>;  // the last: why it fails
  std::shared_ptr<Communicator> comm;
  std::shared_ptr<const Operation> operation;
};
struct FailTask {  // in place of work that shall fail
  Failure failure;
  bringup_record_kind kind;  // of that work
};
using Task = std::variant<CopyTask, RowCopyTask, FillTask, WideFillTask, OwnedLaunch, HostTask,
                          OwnedValues, RecordTask, WaitTask, GraphTask, CommTask, FailTask>;

// Performs a task that needs nothing of its stream: any but RecordTask, WaitTask and GraphTask.
// Returns what went wrong, or nothing. The task can be performed again.
std::optional<Failure> run_task(Task& task, const Place& place);

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(int32_t device, int number, const DeviceMemory& memory, Turns& turns, WorkLog& log,
         int32_t priority);
  ~Stream();

  int32_t device() const noexcept { return place_.device; }
  int number() const noexcept { return place_.stream_number; }

  // Cheap when the worker is busy: a lock and a push. A short copy, fill or launch, or an event,
  // that nothing is before is performed here instead, which takes no longer than waking the worker.
  // Throws SimError once the stream was stopped.
  void enqueue(Task task);
  void record(const std::shared_ptr<Event>& event);
  // What was enqueued so far is waited for: where streams put work off, it runs now.
  void demand();
  // Where streams no longer put work off.
  void wake();
  bool idle() const noexcept {
    return completed_.load(std::memory_order_acquire) == submitted_.load(std::memory_order_acquire);
  }
  // Waits for what was enqueued so far, then throws the first failure since the last call, also
  // that of another stream which this one waited for: its results depend on it. An
  // atomic check when idle.
  void synchronize();
  // The same, but false when `deadline` comes first.
  bool synchronize_until(std::chrono::steady_clock::time_point deadline);
  // Drops what is queued, waits for what runs, and forgets the failure: begin_reset() for every
  // stream of a device, as they may wait for each other, then end_reset() for every one.
  void begin_reset();
  void end_reset();
  // Throws the first failure so far and forgets it.
  void raise_failure();
  // From begin to end what is enqueued is kept, not performed. end_capture() gives it, or throws
  // what broke the capture; either way the stream runs again, as after abort_capture().
  void begin_capture();
  std::vector<Task> end_capture();
  void abort_capture();
  bringup_capture_state capture_state();
  // Throws while the stream is captured, and breaks the capture: `call` would wait or ask for it.
  void refuse_in_capture(const char* call);
  // Ends the worker: after all tasks (drain) or after the one it runs, dropping the others.
  void stop(bool drain);

 private:
  // A task, and its number while the device's work is recorded.
  struct Queued {
    Task task;
    WorkNumber number;
  };

  struct Capture {
    std::vector<Task> tasks;
    std::string broken_by;  // empty: nothing
  };

  void work();
  void keep_captured(Task task);
  [[noreturn]] void break_capture(const std::string& why);
  std::optional<Capture> take_capture();
  // Whether the caller may perform a task, as none is queued or runs. With mutex_ held, as below.
  bool is_callers() const;
  bool runs_at_once(const Task& task) const;
  // Whether it is a launch behind a wait, which the worker would have to be woken for.
  bool follows_wait(const Task& task);
  // Performs a launch in the calling thread, while others may only queue.
  void launch_here(Queued queued, std::unique_lock<std::mutex> lock) noexcept;
  // Performs what is queued in the calling thread, which would wait for it, unless the worker has
  // begun: sooner than that wakes up.
  void perform_here_what_waits();
  void end_launching();
  WorkNumber next_number(const Task& task);
  void run(Queued& queued);
  void run_all(std::vector<Queued>& batch);
  // Performs it, and where work is recorded notes when.
  void perform(Queued& queued);
  void note(Queued& queued);
  void perform(Task& task);
  void drop(Task& task);
  void wait_for_demand();
  void delay(const Task& task) const;
  void fail(std::shared_ptr<StreamFailure> failure);
  void fail(Failure failure) { fail(std::make_shared<StreamFailure>(std::move(failure))); }
  std::shared_ptr<StreamFailure> failure();
  void finish(Task&& task);
  bool wait_for(uint64_t target, std::optional<std::chrono::steady_clock::time_point> deadline);
  // Whether this stream has work that other streams have to stand back for.
  void set_ready(bool ready);
  void set_blocked(bool blocked);

  Place place_;
  Turns& turns_;
  WorkLog& log_;
  const int32_t priority_;
  // Guards incoming_, sleeping_, working_, thread_, numbered_, ready_, blocked_, launching_,
  // capture_; held by what performs a short copy, fill or event that is not the worker.
  std::mutex mutex_;
  bool ready_ = false;
  bool blocked_ = false;  // in a wait or a host function
  std::condition_variable wake_;
  std::vector<Queued> incoming_;
  WorkNumber numbered_;  // the next number, of the last recording
  bool sleeping_ = false;
  bool working_ = false;    // the worker has taken tasks
  bool launching_ = false;  // in launch_here or perform_here_what_waits
  std::optional<Capture> capture_;
  std::atomic<bool> capturing_{false};  // capture_ is there
  std::thread thread_;
  std::atomic<bool> draining_{false};
  std::atomic<bool> dropping_{false};  // for good
  std::atomic<bool> resetting_{false};

  std::atomic<uint64_t> submitted_{0};
  std::atomic<uint64_t> completed_{0};
  std::atomic<uint64_t> demanded_{0};
  std::atomic<int> launches_{kLaunchesBehindWait};  // of plain values since the last wait
  std::atomic<int> waiters_{0};
  std::mutex done_mutex_;
  std::condition_variable done_;

  std::atomic<bool> failed_{false};
  std::mutex failure_mutex_;
  std::shared_ptr<StreamFailure> failure_;
};

// True on a worker thread, where waiting for a stream would wait for itself.
bool on_worker_thread() noexcept;

}  // namespace bringup::sim
