// What a collective on device tensors gives its caller.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "torch/distributed/loan.h"
#include "torch/distributed/progress.h"

namespace bringup::distributed {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Why a group takes nothing any more; the error of what it is given after `cause`, or after its
// end.
std::string after_failure(const std::string& why);
std::exception_ptr refusal(const std::exception_ptr& cause);

// Whether a collective by gloo has yet to write this memory.
bool is_pending(const c10::StorageImpl* memory);

// Of a collective with these results.
c10::intrusive_ptr<c10::ivalue::Future> new_future(const Tensors& outputs);

class DeviceWork final : public c10d::Work {
 public:
  DeviceWork(c10d::OpType op, Tensors outputs, std::shared_ptr<CopyStreams> streams);
  ~DeviceWork() override;

  Loan& loan() { return loan_; }
  // Once, when gloo has it, or cannot have it.
  void posted(WorkPtr inner);
  void failed(std::exception_ptr error) { end(std::move(error)); }

  bool isCompleted() override { return progress_.has_ended(); }
  bool isSuccess() const override { return exception() == nullptr; }
  std::exception_ptr exception() const override { return progress_.error(); }
  int sourceRank() const override;
  Tensors result() override { return outputs_; }
  // Until the results are there for the current streams. `timeout` 0: the group's.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override { wait(kNoTimeout); }
  void abort() override;
  // Made for the first who asks.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void complete();  // gloo is done
  void end(std::exception_ptr error);
  void complete_future(const std::exception_ptr& error);
  void forget_pending();

  const Tensors outputs_;
  bool is_pending_ = true;
  Loan loan_;
  WorkPtr inner_;  // once it is posted
  Progress progress_;
  std::once_flag future_asked_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Several as one.
class GroupWork final : public c10d::Work {
 public:
  explicit GroupWork(std::vector<WorkPtr> works);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override { wait(kNoTimeout); }
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<WorkPtr> works_;
};

}  // namespace bringup::distributed
