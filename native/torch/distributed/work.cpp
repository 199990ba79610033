#include "torch/distributed/work.h"

#include <ATen/core/ivalue_inl.h>

#include <algorithm>
#include <deque>
#include <set>

namespace bringup::distributed {
namespace {

using c10::ivalue::Future;

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

DeviceWork::DeviceWork(c10d::OpType op, Tensors outputs)
    : Work(-1, op), outputs_(std::move(outputs)), future_(new_future(outputs_)) {}

void DeviceWork::posted(WorkPtr inner) {
  {
    const std::lock_guard lock(mutex_);
    inner_ = inner;
  }
  cv_.notify_all();
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
  {
    const std::lock_guard lock(mutex_);
    if (completed_) return;
    completed_ = true;
    exception_ = error;
  }
  cv_.notify_all();
  if (error) {
    future_->setErrorIfNeeded(error);
    return;
  }
  try {  // on a thread of gloo's, which an exception would end
    // A future records events in the current streams of the thread that completes it.
    std::deque<CopyStream> streams;
    for (const auto device : future_->devices()) streams.emplace_back(device);
    const NoEventErrors none;
    future_->markCompleted(outputs_);
  } catch (...) {
    future_->setErrorIfNeeded(std::current_exception());
  }
}

c10::intrusive_ptr<Future> DeviceWork::getFuture() {
  TORCH_CHECK_NOT_IMPLEMENTED(!ends_in_wait(opType_),
                              "sends and receives between devices have no future, as gloo's: "
                              "wait() for them");
  return future_;
}

bool DeviceWork::isCompleted() {
  const std::lock_guard lock(mutex_);
  return completed_;
}

int DeviceWork::sourceRank() const {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(inner_, "the sender is known when the message is there: wait() first");
  return inner_->sourceRank();
}

WorkPtr DeviceWork::wait_for_post(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto is_posted = [this] { return inner_ != nullptr || completed_; };
  if (timeout == kNoTimeout) {
    cv_.wait(lock, is_posted);
  } else {
    TORCH_CHECK_WITH(DistBackendError, cv_.wait_for(lock, timeout, is_posted),
                     "what was queued on the device before this collective did not end within ",
                     timeout.count(), " ms");
  }
  return inner_;
}

bool DeviceWork::wait(std::chrono::milliseconds timeout) {
  const WorkPtr inner = wait_for_post(timeout);
  if (inner != nullptr && !isCompleted()) {
    try {
      inner->wait(timeout);
    } catch (...) {
      if (ends_in_wait(opType_)) end(std::current_exception());
      throw;
    }
    if (ends_in_wait(opType_)) complete();
  }
  std::unique_lock lock(mutex_);
  cv_.wait(lock, [this] { return completed_; });
  if (exception_) std::rethrow_exception(exception_);
  lock.unlock();
  loan_.let_streams_wait();
  return true;
}

void DeviceWork::abort() {
  WorkPtr inner;
  {
    const std::lock_guard lock(mutex_);
    inner = inner_;
  }
  if (inner != nullptr) inner->abort();
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
