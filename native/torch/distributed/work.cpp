#include "torch/distributed/work.h"

#include <ATen/core/ivalue_inl.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <set>
#include <utility>

#include "engine/util/forever.h"

namespace bringup::distributed {
namespace {

using c10::ivalue::Future;

// What works have yet to write.
struct Pending {
  std::mutex mutex;
  std::multiset<const c10::StorageImpl*> memory;
};
Pending& pending() { return forever<Pending>(); }

// Of gloo's works these end only in a wait, and have no future.
bool ends_in_wait(c10d::OpType op) { return c10d::isP2POp(op); }

}  // namespace

std::string after_failure(const std::string& why) {
  return "this process group cannot go on since an earlier failure: " + why;
}

std::exception_ptr refusal(const std::exception_ptr& cause) {
  std::string why = "the process group was destroyed before this collective began";
  try {
    if (cause) std::rethrow_exception(cause);
  } catch (const std::exception& error) {
    why = after_failure(error.what());
  }
  return std::make_exception_ptr(
      c10::DistBackendError({__func__, __FILE__, __LINE__}, std::move(why)));
}

c10::intrusive_ptr<Future> new_future(const Tensors& outputs) {
  std::set<c10::DeviceIndex> indices;
  for (const auto& tensor : outputs) indices.insert(tensor.device().index());
  std::vector<c10::Device> devices;
  for (const auto index : indices) devices.emplace_back(kDevice, index);
  return c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()),
                                     std::move(devices));
}

bool is_pending(const c10::StorageImpl* memory) {
  const std::lock_guard lock(pending().mutex);
  return pending().memory.count(memory) > 0;
}

DeviceWork::DeviceWork(c10d::OpType op, Tensors outputs, std::shared_ptr<CopyStreams> streams)
    : Work(-1, op), outputs_(std::move(outputs)), loan_(std::move(streams)) {
  const std::lock_guard lock(pending().mutex);
  for (const auto& output : outputs_) {
    pending().memory.insert(output.storage().unsafeGetStorageImpl());
  }
}

DeviceWork::~DeviceWork() { forget_pending(); }

void DeviceWork::forget_pending() {
  auto& [mutex, memory] = pending();
  const std::lock_guard lock(mutex);
  if (!std::exchange(is_pending_, false)) return;
  for (const auto& output : outputs_) {
    memory.erase(memory.find(output.storage().unsafeGetStorageImpl()));
  }
}

void DeviceWork::posted(WorkPtr inner) {
  inner_ = inner;
  progress_.post();
  if (ends_in_wait(opType_)) return;
  inner->getFuture()->addCallback(
      [self = c10::intrusive_ptr<DeviceWork>::reclaim_copy(this)](Future& done) {
        if (done.hasError()) {
          self->end(done.exception_ptr());
        } else {
          self->complete();
        }
      });
}

void DeviceWork::complete() {
  try {
    loan_.give_back();
  } catch (...) {
    return end(std::current_exception());
  }
  end(nullptr);
}

void DeviceWork::end(std::exception_ptr error) {
  forget_pending();  // before the end is seen
  progress_.end(std::move(error));
}

c10::intrusive_ptr<Future> DeviceWork::getFuture() {
  TORCH_CHECK_NOT_IMPLEMENTED(!ends_in_wait(opType_),
                              "sends and receives between devices have no future, as gloo's: "
                              "wait() for them");
  std::call_once(future_asked_, [this] {
    future_ = new_future(outputs_);
    progress_.at_end([this](const std::exception_ptr& error) { complete_future(error); });
  });
  return future_;
}

// It may be on a thread of gloo's, which an exception would end.
void DeviceWork::complete_future(const std::exception_ptr& error) {
  if (error) return future_->setErrorIfNeeded(error);
  try {  // A future records events in the current streams of the thread that completes it.
    std::vector<c10::Stream> streams;
    for (const auto device : future_->devices()) {
      streams.push_back(loan_.given_back_in(device.index()));
    }
    const c10::MultiStreamGuard in_copies(streams);
    const NoEventErrors none;
    future_->markCompleted(outputs_);
  } catch (...) {
    future_->setErrorIfNeeded(std::current_exception());
  }
}

int DeviceWork::sourceRank() const {
  TORCH_CHECK(progress_.is_posted(), "the sender is known when the message is there: wait() first");
  return inner_->sourceRank();
}

bool DeviceWork::wait(std::chrono::milliseconds timeout) {
  const bool is_limited = timeout != kNoTimeout;
  TORCH_CHECK_WITH(
      DistBackendError, progress_.wait_posted(is_limited ? std::optional(timeout) : std::nullopt),
      "what was queued before a collective did not end within ", timeout.count(), " ms");
  const bool is_message = ends_in_wait(opType_);
  std::unique_lock one_at_a_time(mutex_, std::defer_lock);
  if (is_message) one_at_a_time.lock();  // which the first ends
  if (progress_.is_posted() && !(is_message && isCompleted())) {
    try {
      inner_->wait(timeout);  // also behind its future: its range in the profiler ends later
    } catch (...) {
      if (is_message) end(std::current_exception());
      throw;
    }
    if (is_message) complete();
  }
  progress_.wait_ended();
  if (const auto error = exception()) std::rethrow_exception(error);
  loan_.let_streams_wait();
  return true;
}

void DeviceWork::abort() {
  if (progress_.is_posted()) inner_->abort();
}

GroupWork::GroupWork(std::vector<WorkPtr> works)
    : Work(-1, c10d::OpType::COALESCED), works_(std::move(works)) {}

bool GroupWork::isCompleted() {
  return std::all_of(works_.begin(), works_.end(), [](auto& work) { return work->isCompleted(); });
}

bool GroupWork::isSuccess() const { return exception() == nullptr; }

std::exception_ptr GroupWork::exception() const {
  for (const auto& work : works_) {
    if (const auto error = work->exception()) return error;
  }
  return nullptr;
}

bool GroupWork::wait(std::chrono::milliseconds timeout) {
  for (const auto& work : works_) work->wait(timeout);
  return true;
}

void GroupWork::abort() {
  for (const auto& work : works_) work->abort();
}

c10::intrusive_ptr<Future> GroupWork::getFuture() {
  c10::List<c10::intrusive_ptr<Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& work : works_) futures.push_back(work->getFuture());
  return c10::collectAll(futures);
}

}  // namespace bringup::distributed
