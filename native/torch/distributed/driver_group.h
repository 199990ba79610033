// The driver's own collectives (BRINGUP_HAS_COLLECTIVES) of one group, in a stream of the group's.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "torch/distributed/work.h"

namespace bringup::distributed {

// What one collective gives the driver, in the stream that is current then.
struct Queue {
  // The tensor, or what is like it on the communicator's device and contiguous: a copy, or empty.
  at::Tensor plain(const at::Tensor& tensor) const;
  at::Tensor target(const at::Tensor& tensor) const;
  at::Tensor empty_for(const at::Tensor& tensor) const;
  // One behind the other.
  at::Tensor flat(const Tensors& tensors) const;
  // What lies one behind the other in `from`, which may be the only tensor itself.
  static void give_back(const at::Tensor& from, const Tensors& tensors);

  const bringup_driver& driver;
  const bringup_comm comm;
  const bringup_stream stream;
  const c10::Device device;
};

// What the driver is asked for, and by what its result is divided.
struct OwnReduction {
  OwnReduction(const Reduction& reduction, at::ScalarType type);
  bool is_known() const { return dtype != 0 && op >= 0; }
  void divide(const at::Tensor& tensor) const { divide_by(tensor, divisor); }

  uint64_t dtype;
  int32_t op;
  int64_t divisor;
};

// Also while it is recorded.
bool is_captured(const c10::Stream& stream);

class DriverGroup {
 public:
  // Returns the driver's status.
  using Give = std::function<int32_t(const Queue&)>;

  // Whether the driver has collectives at all.
  static bool is_possible();
  // Breaks those of all groups, once what is pending has had some time: the process ends.
  static void end_all();

  // Of the ranks of a gloo group, over which they agree.
  explicit DriverGroup(c10::intrusive_ptr<c10d::Backend> gloo);
  DriverGroup(const DriverGroup&) = delete;
  DriverGroup& operator=(const DriverGroup&) = delete;
  ~DriverGroup();

  // Null where the driver has no such collective, which is so for all ranks. The first one waits
  // for the other ranks, at most for `timeout`, which from then on is the limit of all. In a stream
  // that is captured it becomes part of the graph.
  WorkPtr start(c10d::OpType op, const Tensors& tensors, const Tensors& outputs,
                std::chrono::milliseconds timeout, const Give& give);
  void connect(c10::Device device, std::chrono::milliseconds timeout);
  // Refuses what comes later, and waits for what is pending.
  void stop();
  // What is pending fails, here and at the peers.
  void abort();

 private:
  struct Line {  // of collectives that follow one another
    Line(c10::Device device, bringup_comm comm) : stream(device), comm(comm) {}
    const OwnStream stream;
    const bringup_comm comm;
  };
  Line& line(bool is_captured, c10::Device device, std::chrono::milliseconds timeout);
  bringup_comm join(int tag, c10::Device device, std::chrono::milliseconds timeout);
  bringup_comm_id common_id(int tag, std::chrono::milliseconds timeout);
  WorkPtr queued(const Line& line, c10d::OpType op, const Tensors& tensors, const Tensors& outputs,
                 const Give& give);
  static bool give(const Line& line, const c10::Stream& stream, const Give& give);
  template <class Call>
  decltype(auto) or_break(Call call);
  bool is_pending();
  void refuse_broken();
  void break_off(const std::string& why);

  const c10::intrusive_ptr<c10d::Backend> gloo_;
  const int rank_, size_;
  std::mutex order_;  // of what is given; held while ranks are waited for
  std::mutex mutex_;  // guards what follows
  std::optional<Line> line_;
  std::optional<Line> captured_;  // graphs are launched beside what is in line_
  std::string why_;               // nothing is taken any more
};

// What is queued in a stream of the device's.
class QueuedWork final : public c10d::Work {
 public:
  // It is done when what `stream` has now is; no stream: in the order of the current one.
  QueuedWork(c10d::OpType op, Tensors outputs, const std::optional<c10::Stream>& stream);

  bool isCompleted() override;
  bool isSuccess() const override;
  Tensors result() override { return outputs_; }
  // Makes the current streams wait; with a timeout the caller waits too.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override { wait(kNoTimeout); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const Tensors outputs_;
  const std::optional<c10::Stream> stream_;
  std::optional<c10::Event> done_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace bringup::distributed
