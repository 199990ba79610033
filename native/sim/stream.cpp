#include "sim/stream.h"

#include <algorithm>
#include <cfenv>
#include <cstring>
#include <utility>

#include "sim/faults.h"
#include "sim/graph.h"
#include "sim/status.h"

namespace bringup::sim {
namespace {

thread_local bool t_worker = false;

// Whether this thread rounds to nearest and keeps subnormal numbers, as threads do by default.
bool has_default_arithmetic() noexcept {
#ifdef __SSE__
  return (__builtin_ia32_stmxcsr() & ~0x3fu) == 0x1f80;  // all but the flags
#else
  return false;
#endif
}

// While a caller is the device: it may not wait for itself, and computes as a worker does.
class AsWorker {
 public:
  AsWorker() noexcept
      : worker_(std::exchange(t_worker, true)), changes_(!has_default_arithmetic()) {
    if (!changes_) return;
    std::fegetenv(&callers_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~AsWorker() {
    if (changes_) std::fesetenv(&callers_);
    t_worker = worker_;
  }
  AsWorker& operator=(AsWorker&&) = delete;

 private:
  bool worker_;
  bool changes_;
  std::fenv_t callers_{};
};

// How often synchronize looks before it sleeps: a short kernel is over sooner than a thread wakes
// up.
constexpr int kLooksBeforeSleep = 200;

// The most bytes of a copy or fill that the caller performs: on a loaded machine waking a thread
// takes as long as copying them.
constexpr size_t kShortWork = size_t{4} << 20;

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

void copy_rows(const RowCopyTask& copy) {
  for (size_t row = 0; row < copy.height; ++row) {
    std::memmove(copy.dst + row * copy.dst_pitch, copy.src + row * copy.src_pitch, copy.width);
  }
}

// Doubles what is filled: a few large copies instead of `count` small ones.
void fill_wide(const WideFillTask& fill) {
  const size_t bytes = fill.size * fill.count;
  std::memcpy(fill.dst, fill.pattern.data(), fill.size);
  for (size_t done = fill.size; done < bytes; done *= 2) {
    std::memcpy(fill.dst + done, fill.dst, std::min(done, bytes - done));
  }
}

bringup_record record_of(bringup_record_kind kind, size_t bytes, const char* name = nullptr) {
  bringup_record record{};
  record.kind = kind;
  record.bytes = bytes;
  if (name != nullptr) std::strncpy(record.name, name, sizeof record.name - 1);
  return record;
}

// How many bytes a copy or fill writes; nothing of other work.
std::optional<size_t> bytes_written(const Task& task) {
  using Bytes = std::optional<size_t>;
  return std::visit(Overloaded{
                        [](const CopyTask& copy) -> Bytes { return copy.bytes; },
                        [](const RowCopyTask& copy) -> Bytes { return copy.width * copy.height; },
                        [](const FillTask& fill) -> Bytes { return fill.bytes; },
                        [](const WideFillTask& fill) -> Bytes { return fill.size * fill.count; },
                        [](const auto&) -> Bytes { return std::nullopt; },
                    },
                    task);
}

template <class... Kinds>
bool is_one_of(const Task& task) {
  return (std::holds_alternative<Kinds>(task) || ...);
}

// What a record tells of a task; none for what is no work of the device.
std::optional<bringup_record> describe_work(const Task& task) {
  using Record = std::optional<bringup_record>;
  if (const auto bytes = bytes_written(task)) {
    const bool is_fill = is_one_of<FillTask, WideFillTask>(task);
    return record_of(is_fill ? BRINGUP_RECORD_FILL : BRINGUP_RECORD_COPY, *bytes);
  }
  return std::visit(
      Overloaded{
          [](const OwnedLaunch& launch) -> Record {
            return record_of(BRINGUP_RECORD_KERNEL, 0, launch.get().name);
          },
          [](const OwnedValues& launch) -> Record {
            return record_of(BRINGUP_RECORD_KERNEL, 0, launch->name().c_str());
          },
          [](const GraphTask&) -> Record { return record_of(BRINGUP_RECORD_GRAPH, 0); },
          [](const FailTask& failed) -> Record { return record_of(failed.kind, 0); },
          [](const auto&) -> Record { return std::nullopt; },
      },
      task);
}

// A copy or fill of few bytes, an event, or a launch that says so: nothing that could wait.
bool is_short(const Task& task) {
  if (const auto* launch = std::get_if<OwnedLaunch>(&task)) return is_short_launch(launch->get());
  return is_one_of<RecordTask>(task) || bytes_written(task).value_or(kShortWork + 1) <= kShortWork;
}

std::optional<Failure> run_collective(const CommTask& task, const Place& place) {
  const auto failed = [&](const char* name, const std::optional<std::string>& why) {
    return why ? std::optional(failure_of(name, place, "failed: " + *why)) : std::nullopt;
  };
  return std::visit(Overloaded{
                        [&](const std::string& why) {
                          task.comm->abort(why);
                          return failed("collective", why);
                        },
                        [&](const auto& work) { return failed(work.name, task.comm->run(work)); },
                    },
                    *task.operation);
}

}  // namespace

bool on_worker_thread() noexcept { return t_worker; }

std::optional<Failure> run_task(Task& task, const Place& place) {
  using Result = std::optional<Failure>;
  return std::visit(
      Overloaded{
          [](CopyTask& copy) -> Result {
            std::memmove(copy.dst, copy.src, copy.bytes);
            return std::nullopt;
          },
          [](RowCopyTask& copy) -> Result {
            copy_rows(copy);
            return std::nullopt;
          },
          [](WideFillTask& fill) -> Result {
            fill_wide(fill);
            return std::nullopt;
          },
          [](FillTask& fill) -> Result {
            std::memset(fill.dst, fill.value, fill.bytes);
            return std::nullopt;
          },
          [&](OwnedLaunch& launch) -> Result { return run_launch(launch.get(), place); },
          [&](OwnedValues& launch) -> Result { return launch->run(place); },
          [](HostTask& host) -> Result {
            host.fn(host.user);
            return std::nullopt;
          },
          [&](CommTask& task) -> Result { return run_collective(task, place); },
          [](FailTask& failed) -> Result { return failed.failure; },
          [](auto&) -> Result { return std::nullopt; },
      },
      task);
}

Stream::Stream(int32_t device, int number, const DeviceMemory& memory, Turns& turns, WorkLog& log,
               int32_t priority)
    : place_{device, number, this, &memory}, turns_(turns), log_(log), priority_(priority) {}

Stream::~Stream() { stop(false); }

void Stream::enqueue(Task task) {
  bool wake = false;
  {
    std::unique_lock lock(mutex_);
    if (draining_ || dropping_) throw SimError(BRINGUP_INVALID, "the stream was destroyed");
    if (capture_) return keep_captured(std::move(task));
    const bool at_once = runs_at_once(task) || follows_wait(task);
    if (!at_once && !thread_.joinable()) thread_ = std::thread(&Stream::work, this);
    const WorkNumber number = next_number(task);
    Queued queued{std::move(task), number};
    if (at_once && is_one_of<OwnedLaunch, OwnedValues>(queued.task)) {
      submitted_.fetch_add(1, std::memory_order_release);
      return launch_here(std::move(queued), std::move(lock));
    }
    if (at_once) {
      perform(queued);
      submitted_.fetch_add(1, std::memory_order_release);
      finish(std::move(queued.task));
      return;
    }
    incoming_.push_back(std::move(queued));
    if (!blocked_) set_ready(true);
    submitted_.fetch_add(1, std::memory_order_release);
    wake = std::exchange(sleeping_, false);
  }
  if (wake) wake_.notify_one();
}

// The kernel and the launch's owner are others' code, which may give this stream work: they run
// without the lock, and the worker waits until they are over.
void Stream::launch_here(Queued queued, std::unique_lock<std::mutex> lock) noexcept {
  launching_ = true;
  lock.unlock();
  {
    const AsWorker device;
    perform(queued);
    finish(std::move(queued.task));
  }
  end_launching();
}

void Stream::end_launching() {
  std::unique_lock lock(mutex_);
  launching_ = false;
  const bool is_awaited = !incoming_.empty() || draining_ || dropping_;
  lock.unlock();
  if (is_awaited) wake_.notify_all();
}

// Only what has no owner, whose code could need what the caller holds.
void Stream::perform_here_what_waits() {
  std::vector<Queued> batch;
  {
    const std::lock_guard lock(mutex_);
    const bool is_free = !working_ && !launching_ && priority_ >= kLeastPriority;
    if (!is_free || incoming_.empty() || Faults::active()) return;
    const auto is_plain = [](const Queued& queued) {
      return is_one_of<OwnedValues, RecordTask>(queued.task) || bytes_written(queued.task);
    };
    if (!std::all_of(incoming_.begin(), incoming_.end(), is_plain)) return;
    launching_ = true;
    batch.swap(incoming_);
  }
  {
    const AsWorker device;
    run_all(batch);
  }
  end_launching();
}

void Stream::begin_capture() {
  const std::lock_guard lock(mutex_);
  if (capture_) throw SimError(BRINGUP_INVALID, "the stream is captured already");
  capture_.emplace();
  capturing_ = true;
}

// What is dropped is released by its owner, without the lock.
std::optional<Stream::Capture> Stream::take_capture() {
  const std::lock_guard lock(mutex_);
  capturing_ = false;
  return std::exchange(capture_, std::nullopt);
}

std::vector<Task> Stream::end_capture() {
  std::optional<Capture> taken = take_capture();
  if (!taken) throw SimError(BRINGUP_INVALID, "the stream is not captured");
  if (taken->broken_by.empty() && taken->tasks.empty()) {
    throw SimError(BRINGUP_INVALID, "nothing was given to the stream while it was captured");
  }
  if (taken->broken_by.empty()) return std::move(taken->tasks);
  refuse(BRINGUP_INVALID, "the capture of the stream is broken: ", taken->broken_by);
}

void Stream::abort_capture() {
  if (!take_capture()) throw SimError(BRINGUP_INVALID, "the stream is not captured");
}

bringup_capture_state Stream::capture_state() {
  const std::lock_guard lock(mutex_);
  if (!capture_) return BRINGUP_CAPTURE_NONE;
  return capture_->broken_by.empty() ? BRINGUP_CAPTURE_ACTIVE : BRINGUP_CAPTURE_BROKEN;
}

void Stream::refuse_in_capture(const char* call) {
  if (!capturing_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  if (capture_) break_capture(std::string(call) + " while it is captured");
}

// With mutex_ held.
void Stream::break_capture(const std::string& why) {
  if (capture_->broken_by.empty()) capture_->broken_by = why;
  throw SimError(BRINGUP_INVALID, why);
}

void Stream::keep_captured(Task task) {
  next_number(task);  // a call that returned OK, though the device does nothing for it
  if (is_one_of<RecordTask, WaitTask>(task)) break_capture("an event in a captured stream");
  if (is_one_of<GraphTask>(task)) break_capture("the launch of a graph in a captured stream");
  capture_->tasks.push_back(std::move(task));
}

// Not where faults delay or put off what a stream does, nor where streams stand back for each
// other.
bool Stream::is_callers() const {
  return !launching_ && idle() && !Faults::active() && !resetting_.load() &&
         priority_ >= kLeastPriority && !turns_.any_urgent();
}

bool Stream::runs_at_once(const Task& task) const { return is_short(task) && is_callers(); }

bool Stream::follows_wait(const Task& task) {
  const auto* launch = std::get_if<OwnedValues>(&task);
  return launch != nullptr && (*launch)->is_independent() && is_callers() &&
         launches_.fetch_add(1) < kLaunchesBehindWait;
}

WorkNumber Stream::next_number(const Task& task) {
  const uint64_t recording = log_.recording();
  if (recording == 0 || !describe_work(task)) return {};
  if (numbered_.recording != recording) numbered_ = {recording, 0};
  return {recording, numbered_.number++};
}

void Stream::record(const std::shared_ptr<Event>& event) {
  const auto record = event->issue(shared_from_this());
  try {
    enqueue(RecordTask{record});
  } catch (...) {
    record->complete();  // nothing shall wait for a record that never comes
    throw;
  }
}

void Stream::demand() {
  const uint64_t target = submitted_.load();
  uint64_t former = demanded_.load();
  while (former < target && !demanded_.compare_exchange_weak(former, target)) {
  }
  if (Faults::late()) wake();
}

void Stream::wake() {
  { const std::lock_guard lock(mutex_); }  // the worker sleeps, or has not looked yet
  wake_.notify_one();
}

void Stream::synchronize() {
  refuse_in_capture("a wait for the stream");
  wait_for(submitted_.load(std::memory_order_acquire), std::nullopt);
  raise_failure();
}

bool Stream::synchronize_until(std::chrono::steady_clock::time_point deadline) {
  refuse_in_capture("a wait for the stream");
  if (!wait_for(submitted_.load(std::memory_order_acquire), deadline)) return false;
  raise_failure();
  return true;
}

bool Stream::wait_for(uint64_t target,
                      std::optional<std::chrono::steady_clock::time_point> deadline) {
  demand();
  launches_ = 0;
  if (!deadline) perform_here_what_waits();
  const auto reached = [&] { return completed_.load(std::memory_order_acquire) >= target; };
  for (int look = 0; look < kLooksBeforeSleep && !reached(); ++look) std::this_thread::yield();
  if (reached()) return true;
  waiters_.fetch_add(1);
  std::unique_lock lock(done_mutex_);
  const auto is_done = [&] { return completed_.load() >= target; };
  bool over = true;
  if (deadline) {
    over = done_.wait_until(lock, *deadline, is_done);
  } else {
    done_.wait(lock, is_done);
  }
  lock.unlock();
  waiters_.fetch_sub(1);
  return over;
}

void Stream::begin_reset() {
  take_capture();
  resetting_ = true;
  turns_.wake();
  wake();
}

void Stream::end_reset() {
  wait_for(submitted_.load(std::memory_order_acquire), std::nullopt);
  resetting_ = false;
  std::lock_guard lock(failure_mutex_);
  failed_ = false;
  if (const auto failure = std::exchange(failure_, nullptr)) failure->reported = true;
}

// Only streams that are more urgent than others need to say so. With mutex_ held.
void Stream::set_ready(bool ready) {
  if (priority_ >= kLeastPriority || ready == ready_) return;
  ready_ = ready;
  if (ready) {
    turns_.announce(priority_);
  } else {
    turns_.withdraw(priority_);
  }
}

void Stream::set_blocked(bool blocked) {
  if (priority_ >= kLeastPriority) return;
  std::lock_guard lock(mutex_);
  blocked_ = blocked;
  set_ready(!blocked);
}

void Stream::raise_failure() {
  if (!failed_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(failure_mutex_);
  if (!failed_.exchange(false)) return;
  const auto failure = std::exchange(failure_, nullptr);
  if (failure->reported.exchange(true) && failure->is_told_once) return;
  throw SimError(BRINGUP_KERNEL_FAILED, failure->what.text, failure->what.detail);
}

void Stream::stop(bool drain) {
  std::thread ending;
  {
    std::unique_lock lock(mutex_);
    (drain ? draining_ : dropping_) = true;
    wake_.wait(lock, [&] { return !launching_; });
    ending = std::exchange(thread_, std::thread());
  }
  wake_.notify_all();
  turns_.wake();
  if (ending.joinable()) ending.join();
}

void Stream::work() {
  t_worker = true;
  std::fesetenv(FE_DFL_ENV);  // a thread begins with that of its maker
  std::vector<Queued> batch;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      working_ = false;
      if (incoming_.empty()) set_ready(false);
      wake_.wait(lock, [&] {
        sleeping_ = incoming_.empty();  // again where a waiting caller has taken what woke this one
        return !launching_ && (!sleeping_ || draining_ || dropping_);
      });
      sleeping_ = false;
      if (incoming_.empty()) return;
      batch.swap(incoming_);
      working_ = true;
    }
    run_all(batch);
    batch.clear();
  }
}

void Stream::run_all(std::vector<Queued>& batch) {
  for (Queued& queued : batch) {
    wait_for_demand();
    if (!dropping_.load(std::memory_order_relaxed)) run(queued);
    finish(std::move(queued.task));
  }
}

void Stream::wait_for_demand() {
  if (!Faults::late()) return;
  set_blocked(true);  // less urgent streams need not stand back
  {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] {
      return !Faults::late() || completed_.load() < demanded_.load() || draining_ || dropping_ ||
             resetting_;
    });
  }
  set_blocked(false);
}

void Stream::delay(const Task& task) const {
  using Work = Faults::Work;
  const std::optional<size_t> bytes = bytes_written(task);
  const bool is_launch = is_one_of<OwnedLaunch, OwnedValues, GraphTask>(task);
  const Work work = bytes ? Work::kCopy : is_launch ? Work::kLaunch : Work::kOther;
  Faults::instance().delay(work, bytes.value_or(0), place_, completed_.load());
}

void Stream::finish(Task&& task) {
  // Let go of events, graphs and launches before the task counts as over.
  { const Task over = std::move(task); }
  completed_.fetch_add(1);
  if (waiters_.load() == 0) return;
  std::lock_guard lock(done_mutex_);
  done_.notify_all();
}

void Stream::run(Queued& queued) {
  Task& task = queued.task;
  const bool blocks = is_one_of<HostTask, WaitTask, CommTask>(task);
  if (blocks) {
    set_blocked(true);
  } else {
    turns_.await(priority_, dropping_, resetting_);
  }
  if (Faults::active()) delay(task);
  if (resetting_.load(std::memory_order_relaxed)) {
    drop(task);
  } else if (Faults::active() && Faults::instance().lost(device())) {
    fail(Failure{"device " + std::to_string(device()) + " was lost before all work of stream " +
                     std::to_string(number()) + " had run",
                 {}});
    drop(task);
  } else {
    perform(queued);
  }
  if (blocks) set_blocked(false);
}

void Stream::perform(Queued& queued) {
  if (queued.number.recording != 0) {
    note(queued);
  } else {
    perform(queued.task);
  }
}

void Stream::note(Queued& queued) {
  bringup_record record = *describe_work(queued.task);
  record.device = place_.device;
  record.stream = place_.stream_number == 0 ? nullptr : reinterpret_cast<bringup_stream>(this);
  record.number = queued.number.number;
  record.begin = wall_time_ns();
  perform(queued.task);
  record.end = std::max(record.begin, wall_time_ns());  // the clock may be set back
  log_.add(queued.number.recording, record);
}

void Stream::perform(Task& task) {
  std::visit(Overloaded{
                 [this](RecordTask& task) { task.record->complete(failure()); },
                 [this](WaitTask& task) {
                   task.record->wait(&resetting_);
                   if (auto failure = task.record->failure()) fail(std::move(failure));
                 },
                 [this](GraphTask& task) {
                   const auto stopped = [this] { return dropping_.load() || resetting_.load(); };
                   if (auto failure = task.graph->run(*task.kernels, place_, stopped)) {
                     fail(std::move(*failure));
                   }
                 },
                 [&](auto& one) {
                   constexpr bool kOnce = std::is_same_v<decltype(one), CommTask&>;
                   if (auto failure = run_task(task, place_)) {
                     fail(std::make_shared<StreamFailure>(std::move(*failure), kOnce));
                   }
                 },
             },
             task);
}

// Events that were pending are done; nothing shall wait for them.
void Stream::drop(Task& task) {
  if (auto* dropped = std::get_if<RecordTask>(&task)) dropped->record->complete(failure());
}

// The first failure stands until it is reported, here or elsewhere: others mostly follow from it.
void Stream::fail(std::shared_ptr<StreamFailure> failure) {
  std::lock_guard lock(failure_mutex_);
  if (failed_.load() && !failure_->reported.load()) return;
  failure_ = std::move(failure);
  failed_.store(true, std::memory_order_release);
}

std::shared_ptr<StreamFailure> Stream::failure() {
  if (!failed_.load(std::memory_order_acquire)) return nullptr;
  std::lock_guard lock(failure_mutex_);
  return failure_;
}

}  // namespace bringup::sim
