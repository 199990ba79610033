// What one collective borrows: the host's view of device tensors, or pinned copies of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>
#include <vector>

#include "bringup/driver.h"

namespace bringup::distributed {

using Tensors = std::vector<at::Tensor>;

constexpr auto kDevice = c10::DeviceType::PrivateUse1;

inline c10::impl::VirtualGuardImpl device_guard() { return c10::impl::VirtualGuardImpl(kDevice); }

using ThreadSwitch = bool& (*)() noexcept;

// The table of the driver that owns PrivateUse1, the guard's switch of that name, and whether the
// host sees the memory of all devices; set once, when the module is loaded.
void use_driver(const bringup_driver* table, ThreadSwitch waits_in_place_of_events,
                bool host_sees_memory);
const bringup_driver& driver();
std::string said();  // by the driver, of the last call that failed on this thread

inline bringup_stream handle_of(const c10::Stream& stream) {
  return static_cast<bringup_stream>(device_guard().getStreamNativeHandle(stream));
}

// While it lives the device's guard raises nothing for events on this thread.
class NoEventErrors {
 public:
  NoEventErrors();
  NoEventErrors(const NoEventErrors&) = delete;
  NoEventErrors& operator=(const NoEventErrors&) = delete;
  ~NoEventErrors() { switch_ = former_; }

 private:
  bool& switch_;
  const bool former_;
};

// How a reduction is computed by gloo, which has neither all dtypes nor all operations.
struct Reduction {
  // Raises NotImplementedError for what is not computed, naming operation and dtype.
  Reduction(const c10d::ReduceOp& asked, at::ScalarType dtype, int size);

  c10d::ReduceOp op;     // what gloo is asked for
  at::ScalarType wire;   // in which dtype
  bool is_real = false;  // over the real view of a complex tensor
  int64_t divisor = 1;   // the result is divided by it
  at::Tensor factor;     // inputs are multiplied by it before, where defined
};

// A stream that no one else is given while it lives: work in it may wait for other ranks, and what
// others queue behind it would too, as in the shared streams of torch's pool.
class OwnStream {
 public:
  explicit OwnStream(c10::Device device);
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  ~OwnStream();
  const c10::Stream& get() const { return stream_; }

 private:
  const c10::Stream stream_;
  const int process_;
};

enum class Use { kIn, kOut, kInOut };

// In which a group copies what gloo reads, and what it wrote; each made when it is asked for.
class CopyStreams {
 public:
  c10::Stream of(c10::DeviceIndex device, Use use);
  // Pinned memory; some that is small is kept for the next tensor of its kind.
  at::Tensor staging(at::IntArrayRef sizes, at::ScalarType type);

 private:
  bool is_idle() const;

  std::mutex mutex_;
  std::map<std::pair<c10::DeviceIndex, Use>, OwnStream> streams_;
  std::vector<at::Tensor> kept_;
};

// In place; what is left of an integer is cut off. By 1: nothing.
void divide_by(const at::Tensor& tensor, int64_t divisor);

int64_t total_numel(const Tensors& tensors);

// Its memory holds its elements, one behind the other.
bool is_plain(const at::Tensor& tensor);

// The tensor, or its bytes where gloo lacks the dtype.
at::Tensor movable(const at::Tensor& host);

// Tensors are lent when the collective is called. What gloo reads of them is there when what was
// queued then, and the copies that lending began, are done.
class Loan {
 public:
  explicit Loan(std::shared_ptr<CopyStreams> streams) : streams_(std::move(streams)) {}
  // Before tensors of these devices are lent. Raises what failed in a stream that is idle, or that
  // a stream is captured.
  void begin(const std::set<c10::DeviceIndex>& devices);
  // A contiguous CPU tensor for a device tensor; over the same bytes where that can be.
  at::Tensor lend(const at::Tensor& tensor, Use use, const Reduction* reduction = nullptr);
  Tensors lend(const Tensors& tensors, Use use, const Reduction* reduction = nullptr);
  std::vector<Tensors> lend(const std::vector<Tensors>& lists, Use use);
  // All of them, one behind the other, in one CPU tensor of one dimension.
  at::Tensor lend_flat(const Tensors& tensors, Use use);

  // The parts, one behind the other, in a CPU tensor to be reduced as a whole; `output` becomes
  // what lies at `begin` then.
  at::Tensor lend_parts(const Tensors& parts, const at::Tensor& output, int64_t begin,
                        const Reduction& reduction);

  // After all are lent.
  void end();
  bool is_there() const;
  void wait() const;
  // Once it is there: computes what the host does before gloo.
  void complete_inputs();

  // After the collective: divides, and starts the copies to the device. What they wrote is there
  // for a stream that waits for `given_back`.
  void give_back();
  c10::Stream given_back_in(c10::DeviceIndex device) const {
    return streams_->of(device, Use::kOut);
  }
  void let_streams_wait() const;

 private:
  struct Lent {
    at::Tensor device;
    at::Tensor host;
  };
  struct Input {  // in `staging`, which becomes `host`
    at::Tensor staging;
    at::Tensor host;
    at::Tensor factor;
  };
  struct Queued {
    c10::Event done;
    bool has_copies = false;
  };
  void fetch(const at::Tensor& tensor, const at::Tensor& host);
  at::Tensor converted(const at::Tensor& staging, at::ScalarType wire, const at::Tensor& factor);

  const std::shared_ptr<CopyStreams> streams_;
  std::map<c10::DeviceIndex, Queued> queued_;
  std::vector<Input> inputs_;
  std::vector<Lent> written_;
  Tensors divided_;
  int64_t divisor_ = 1;
  std::map<c10::DeviceIndex, c10::Event> given_back_;
};

}  // namespace bringup::distributed
