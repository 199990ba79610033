#include "sim/stream.h"

#include <cstring>
#include <utility>

#include "sim/graph.h"
#include "sim/status.h"

namespace bringup::sim {
namespace {

thread_local bool t_worker = false;

// How often synchronize looks before it sleeps: a short kernel is over sooner than a thread wakes
// up.
constexpr int kLooksBeforeSleep = 200;

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace

bool on_worker_thread() noexcept { return t_worker; }

Stream::Stream(int32_t device, int number, const DeviceMemory& memory)
    : place_{device, number, this, &memory} {}

Stream::~Stream() { stop(false); }

void Stream::enqueue(Task task) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    if (draining_ || dropping_) throw SimError(BRINGUP_INVALID, "the stream was destroyed");
    if (!thread_.joinable()) thread_ = std::thread(&Stream::work, this);
    incoming_.push_back(std::move(task));
    submitted_.fetch_add(1, std::memory_order_release);
    wake = std::exchange(sleeping_, false);
  }
  if (wake) wake_.notify_one();
}

void Stream::record(const std::shared_ptr<Event>& event) {
  const uint64_t version = event->issue(shared_from_this());
  try {
    enqueue(RecordTask{event, version});
  } catch (...) {
    event->complete(version);  // nobody shall wait for a record that never comes
    throw;
  }
}

void Stream::synchronize() {
  const uint64_t target = submitted_.load(std::memory_order_acquire);
  const auto reached = [&] { return completed_.load(std::memory_order_acquire) >= target; };
  for (int look = 0; look < kLooksBeforeSleep && !reached(); ++look) std::this_thread::yield();
  if (!reached()) {
    waiters_.fetch_add(1);
    std::unique_lock lock(done_mutex_);
    done_.wait(lock, [&] { return completed_.load() >= target; });
    lock.unlock();
    waiters_.fetch_sub(1);
  }
  raise_failure();
}

void Stream::raise_failure() {
  if (!failed_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(failure_mutex_);
  if (!failed_.exchange(false)) return;
  throw SimError(BRINGUP_KERNEL_FAILED, std::exchange(failure_, std::string()));
}

void Stream::stop(bool drain) {
  std::thread ending;
  {
    std::lock_guard lock(mutex_);
    (drain ? draining_ : dropping_) = true;
    ending = std::exchange(thread_, std::thread());
  }
  wake_.notify_one();
  if (ending.joinable()) ending.join();
}

void Stream::work() {
  t_worker = true;
  std::vector<Task> batch;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      sleeping_ = incoming_.empty();
      wake_.wait(lock, [&] { return !incoming_.empty() || draining_ || dropping_; });
      sleeping_ = false;
      if (incoming_.empty()) return;
      batch.swap(incoming_);
    }
    for (Task& task : batch) {
      if (!dropping_.load(std::memory_order_relaxed)) run(task);
      // Let go of events, graphs and launches before anybody learns that the task is over.
      { const Task over = std::move(task); }
      finish_one();
    }
    batch.clear();
  }
}

void Stream::finish_one() {
  completed_.fetch_add(1);
  if (waiters_.load() == 0) return;
  std::lock_guard lock(done_mutex_);
  done_.notify_all();
}

void Stream::run(Task& task) {
  std::visit(Overloaded{
                 [](CopyTask& copy) { std::memmove(copy.dst, copy.src, copy.bytes); },
                 [](FillTask& fill) { std::memset(fill.dst, fill.value, fill.bytes); },
                 [this](OwnedLaunch& launch) {
                   if (auto text = run_launch(launch.get(), place_)) fail(std::move(*text));
                 },
                 [](HostTask& host) { host.fn(host.user); },
                 [](RecordTask& record) { record.event->complete(record.version); },
                 [](WaitTask& wait) { wait.event->wait(wait.version); },
                 [this](GraphTask& task) {
                   if (auto text = task.graph->run(*task.kernels, place_)) fail(std::move(*text));
                 },
             },
             task);
}

// The first failure stands: the others mostly follow from it.
void Stream::fail(std::string text) {
  std::lock_guard lock(failure_mutex_);
  if (failed_.load()) return;
  failure_ = std::move(text);
  failed_.store(true, std::memory_order_release);
}

}  // namespace bringup::sim
