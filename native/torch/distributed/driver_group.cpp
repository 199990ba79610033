#include "torch/distributed/driver_group.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "engine/util/forever.h"
#include "torch/common/dtype_bits.h"

namespace bringup::distributed {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kLastMoment{2};  // of what is pending when the process ends
constexpr std::chrono::microseconds kLook{200};
constexpr int kTag = 0x62677570;  // of the kit's own messages, beside those of users

struct Live {
  std::mutex mutex;
  std::set<DriverGroup*> groups;
};
Live& live() { return forever<Live>(); }

std::set<c10::DeviceIndex> devices_of(const Tensors& tensors) {
  std::set<c10::DeviceIndex> devices;
  for (const at::Tensor& tensor : tensors) devices.insert(tensor.device().index());
  return devices;
}

c10::Stream current_stream(c10::DeviceIndex device) {
  return device_guard().getStream(c10::Device(kDevice, device));
}

}  // namespace

OwnReduction::OwnReduction(const Reduction& reduction, at::ScalarType type)
    : dtype(0), op(-1), divisor(reduction.divisor) {
  for (const auto& [bit, known] : torch_ext::kDtypeBits) dtype |= known == type ? bit : 0;
  constexpr std::pair<c10d::ReduceOp::RedOpType, int32_t> kOps[] = {
      {c10d::ReduceOp::SUM, BRINGUP_REDUCE_SUM},
      {c10d::ReduceOp::PRODUCT, BRINGUP_REDUCE_PRODUCT},
      {c10d::ReduceOp::MIN, BRINGUP_REDUCE_MIN},
      {c10d::ReduceOp::MAX, BRINGUP_REDUCE_MAX},
      {c10d::ReduceOp::BAND, BRINGUP_REDUCE_BAND},
      {c10d::ReduceOp::BOR, BRINGUP_REDUCE_BOR},
      {c10d::ReduceOp::BXOR, BRINGUP_REDUCE_BXOR}};
  for (const auto& [asked, known] : kOps) op = reduction.op.op_ == asked ? known : op;
  if (reduction.factor.defined()) op = -1;
}

at::Tensor Queue::plain(const at::Tensor& tensor) const {
  if (tensor.device() == device && is_plain(tensor)) return tensor;
  return empty_for(tensor).copy_(tensor, /*non_blocking=*/true);
}

at::Tensor Queue::target(const at::Tensor& tensor) const {
  return tensor.device() == device && is_plain(tensor) ? tensor : empty_for(tensor);
}

at::Tensor Queue::empty_for(const at::Tensor& tensor) const {
  return at::empty(tensor.sizes(), tensor.options().device(device));
}

at::Tensor Queue::flat(const Tensors& tensors) const {
  const auto options = tensors.front().options().device(device);
  at::Tensor all = at::empty({total_numel(tensors)}, options);
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    all.narrow(0, begin, tensor.numel()).view(tensor.sizes()).copy_(tensor, true);
    begin += tensor.numel();
  }
  return all;
}

void Queue::give_back(const at::Tensor& from, const Tensors& tensors) {
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    if (from.is_same(tensor)) return;
    tensor.copy_(from.view(-1).narrow(0, begin, tensor.numel()).view(tensor.sizes()), true);
    begin += tensor.numel();
  }
}

bool is_captured(const c10::Stream& stream) {
  if (device_guard().isStreamCapturing(stream)) return true;
  int32_t state = BRINGUP_CAPTURE_NONE;
  return driver().stream_capture_query != nullptr &&
         driver().stream_capture_query(stream.device_index(), handle_of(stream), &state) ==
             BRINGUP_OK &&
         state != BRINGUP_CAPTURE_NONE;
}

bool DriverGroup::is_possible() { return driver().comm_create != nullptr; }

DriverGroup::DriverGroup(c10::intrusive_ptr<c10d::Backend> gloo)
    : gloo_(std::move(gloo)), rank_(gloo_->getRank()), size_(gloo_->getSize()) {
  const std::lock_guard lock(live().mutex);
  live().groups.insert(this);
}

DriverGroup::~DriverGroup() {
  {
    const std::lock_guard lock(live().mutex);
    live().groups.erase(this);
  }
  stop();
  for (const auto* line : {&line_, &captured_}) {
    if (*line && (*line)->comm != nullptr) driver().comm_destroy((*line)->comm);
  }
}

void DriverGroup::end_all() {
  const auto end = Clock::now() + kLastMoment;
  const std::lock_guard lock(live().mutex);
  for (DriverGroup* group : live().groups) {
    while (group->is_pending() && Clock::now() < end) std::this_thread::sleep_for(kLook);
    group->abort();
  }
}

// Whatever goes wrong in it: peers would take the next collective for this one.
template <class Call>
decltype(auto) DriverGroup::or_break(Call call) {
  try {
    return call();
  } catch (const std::exception& error) {
    break_off(error.what());
    throw;
  }
}

bool DriverGroup::is_pending() {
  const std::lock_guard lock(mutex_);
  try {
    return line_ && !device_guard().queryStream(line_->stream.get());
  } catch (const c10::Error&) {  // which its next synchronisation would have told
    return false;
  }
}

DriverGroup::Line& DriverGroup::line(bool is_captured, c10::Device device,
                                     std::chrono::milliseconds timeout) {
  std::optional<Line>& line = is_captured ? captured_ : line_;
  if (line) return *line;
  const bringup_comm comm = join(kTag + (is_captured ? 1 : 0), device, timeout);
  const std::lock_guard lock(mutex_);
  return line.emplace(device, comm);
}

// By gloo, which notices who has ended before it came, and does so before a rank waits for all.
bringup_comm_id DriverGroup::common_id(int tag, std::chrono::milliseconds timeout) {
  struct {
    bringup_comm_id id{};
    uint8_t is_made = 0;
  } told;
  Tensors words{at::from_blob(&told, {sizeof told}, at::kByte)};
  const auto send = [&](int to) { gloo_->send(words, to, tag)->wait(timeout); };
  const auto receive = [&](int from) { gloo_->recv(words, from, tag)->wait(timeout); };
  if (rank_ != 0) {
    send(0);
    receive(0);
    TORCH_CHECK_WITH(DistBackendError, told.is_made != 0, "rank 0 has no id of a communicator");
    return told.id;
  }
  for (int peer = 1; peer < size_; ++peer) receive(peer);
  told = {};
  told.is_made = driver().comm_id(&told.id) == BRINGUP_OK ? 1 : 0;
  const std::string why = told.is_made != 0 ? "" : said();
  for (int peer = 1; peer < size_; ++peer) send(peer);
  TORCH_CHECK_WITH(DistBackendError, why.empty(), "no id of a communicator: ", why);
  return told.id;
}

// Null where the driver has none for so many ranks.
bringup_comm DriverGroup::join(int tag, c10::Device device, std::chrono::milliseconds timeout) {
  const bringup_comm_id id = common_id(tag, timeout);
  bringup_comm comm = nullptr;
  const int64_t limit = std::chrono::nanoseconds(timeout).count();
  const int32_t status = driver().comm_create(device.index(), &id, rank_, size_, limit, &comm);
  TORCH_CHECK_WITH(DistBackendError, status == BRINGUP_OK || status == BRINGUP_UNSUPPORTED,
                   "no communicator of ", size_, " ranks: ", said());
  return status == BRINGUP_OK ? comm : nullptr;
}

void DriverGroup::connect(c10::Device device, std::chrono::milliseconds timeout) {
  const std::lock_guard in_order(order_);
  refuse_broken();
  or_break([&] { line(false, device, timeout); });
}

WorkPtr DriverGroup::start(c10d::OpType op, const Tensors& tensors, const Tensors& outputs,
                           std::chrono::milliseconds timeout, const Give& give) {
  refuse_broken();  // also while others wait in order_
  const std::lock_guard in_order(order_);
  refuse_broken();
  const c10::Stream current = device_guard().getStream(tensors.front().device());
  const bool is_recorded = is_captured(current);
  const Line& line =
      or_break([&]() -> Line& { return this->line(is_recorded, current.device(), timeout); });
  if (line.comm == nullptr) return {};
  if (!is_recorded) return or_break([&] { return queued(line, op, tensors, outputs, give); });
  // What fails there ends the capture: nothing is given to the device that peers could pair.
  if (!this->give(line, current, give)) return {};
  return c10::make_intrusive<QueuedWork>(op, outputs, std::nullopt);
}

// Null: the driver has none.
WorkPtr DriverGroup::queued(const Line& line, c10d::OpType op, const Tensors& tensors,
                            const Tensors& outputs, const Give& give) {
  const auto guard = device_guard();
  for (const c10::DeviceIndex device : devices_of(tensors)) {
    c10::Event before(kDevice);
    before.record(current_stream(device));
    before.block(line.stream.get());
  }
  const c10::StreamGuard in_line(line.stream.get());
  if (!this->give(line, line.stream.get(), give)) return {};
  for (const at::Tensor& tensor : tensors) {
    guard.recordDataPtrOnStream(tensor.storage().data_ptr(), line.stream.get());
  }
  return c10::make_intrusive<QueuedWork>(op, outputs, line.stream.get());
}

bool DriverGroup::give(const Line& line, const c10::Stream& stream, const Give& give) {
  at::NoGradGuard no_grad;
  TORCH_CHECK(stream.device() == line.stream.get().device(),
              "the group's captured collectives are of ", line.stream.get().device(), ", not of ",
              stream.device());
  TORCH_CHECK_WITH(DistBackendError, driver().comm_query(line.comm) == BRINGUP_OK, said());
  const int32_t status = give({driver(), line.comm, handle_of(stream), stream.device()});
  TORCH_CHECK_WITH(DistBackendError, status == BRINGUP_OK || status == BRINGUP_UNSUPPORTED,
                   "a collective of the driver: ", said());
  return status == BRINGUP_OK;
}

void DriverGroup::refuse_broken() {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK_WITH(DistBackendError, why_.empty(), why_);
}

void DriverGroup::break_off(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (why_.empty()) why_ = after_failure(why);
  for (const auto* line : {&line_, &captured_}) {
    if (*line && (*line)->comm != nullptr) driver().comm_abort((*line)->comm);
  }
}

void DriverGroup::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (!why_.empty()) return;
    why_ = "the process group was destroyed before this collective began";
  }
  const std::lock_guard in_order(order_);
  if (!line_) return;
  try {
    device_guard().synchronizeStream(line_->stream.get());
  } catch (const c10::Error& error) {
    TORCH_WARN("a collective failed whose result was not waited for: ",
               error.what_without_backtrace());
  }
}

void DriverGroup::abort() { break_off("it was aborted"); }

QueuedWork::QueuedWork(c10d::OpType op, Tensors outputs, const std::optional<c10::Stream>& stream)
    : Work(-1, op), outputs_(std::move(outputs)), stream_(stream) {
  if (stream) done_.emplace(kDevice).record(*stream);
}

bool QueuedWork::isCompleted() {
  const std::lock_guard lock(mutex_);
  if (completed_ || !done_) return true;
  try {
    completed_ = done_->query();
    if (completed_) done_->synchronize();  // which tells a failure
  } catch (const c10::Error&) {
    completed_ = true;
    exception_ = std::current_exception();
  }
  return completed_;
}

bool QueuedWork::isSuccess() const {
  const_cast<QueuedWork*>(this)->isCompleted();  // NOLINT: torch asks a const work
  return exception() == nullptr;
}

bool QueuedWork::wait(std::chrono::milliseconds timeout) {
  if (!done_) return true;
  const auto end = Clock::now() + timeout;
  while (!isCompleted() && timeout != kNoTimeout) {
    TORCH_CHECK_WITH(DistBackendError, Clock::now() < end, "a collective did not end within ",
                     timeout.count(), " ms");
    std::this_thread::sleep_for(kLook);
  }
  if (const auto error = exception()) std::rethrow_exception(error);
  auto devices = devices_of(outputs_);
  devices.insert(stream_->device_index());
  for (const c10::DeviceIndex device : devices) done_->block(current_stream(device));
  return true;
}

// Complete at once, for streams: who waits for it makes theirs wait.
c10::intrusive_ptr<c10::ivalue::Future> QueuedWork::getFuture() {
  const std::lock_guard lock(mutex_);
  if (future_) return future_;
  future_ = new_future(outputs_);
  const c10::OptionalStreamGuard in_line(stream_);
  const NoEventErrors none;
  future_->markCompleted(outputs_);
  return future_;
}

}  // namespace bringup::distributed
