#include "torch/distributed/loan.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "engine/util/forever.h"

namespace bringup::distributed {
namespace {

const bringup_driver* loaded = nullptr;
ThreadSwitch event_waits = nullptr;
bool is_memory_seen = false;
constexpr size_t kKeptBytes = 1 << 20;
constexpr size_t kKeptTensors = 8;

bool gloo_has(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kBool:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

// The integers that gloo lacks are computed in wider ones: what is left of them is the same,
// since both wrap.
at::ScalarType integer_of_gloo(at::ScalarType type) {
  switch (type) {
    case at::kShort:
    case at::kUInt16:
      return at::kInt;
    case at::kUInt32:
    case at::kUInt64:
      return at::kLong;
    default:
      return type;
  }
}

const char* name_of(c10d::ReduceOp::RedOpType op) {
  constexpr const char* kNames[] = {"SUM",  "AVG", "PRODUCT", "MIN",        "MAX",
                                    "BAND", "BOR", "BXOR",    "PREMUL_SUM", "UNUSED"};
  return kNames[std::min<size_t>(op, 9)];
}

void* host_view(const at::Tensor& tensor) {
  void* host = nullptr;
  const bool has_view = is_memory_seen && loaded->host_view(tensor.device().index(),
                                                            tensor.data_ptr(), &host) == BRINGUP_OK;
  return has_view ? host : nullptr;
}

at::Tensor pinned(at::IntArrayRef sizes, at::ScalarType type) {
  return at::empty(sizes, at::TensorOptions(at::kCPU).dtype(type).pinned_memory(true));
}

// What groups have given back.
struct FreeStreams {
  std::mutex mutex;
  std::vector<c10::Stream> all;
};
FreeStreams& free_streams() { return forever<FreeStreams>(); }

c10::Stream own_stream(c10::Device device) {
  {
    auto& [mutex, all] = free_streams();
    const std::lock_guard lock(mutex);
    const auto found = std::find_if(all.begin(), all.end(), [&](const c10::Stream& stream) {
      return stream.device() == device;
    });
    if (found != all.end()) {
      const c10::Stream stream = *found;
      all.erase(found);
      return stream;
    }
  }
  bringup_stream made = nullptr;
  TORCH_CHECK(loaded->stream_create(device.index(), 0, &made) == BRINGUP_OK,
              "no stream for collectives: ", said());
  return c10::Stream(c10::Stream::UNSAFE, device, reinterpret_cast<c10::StreamId>(made));
}

}  // namespace

void divide_by(const at::Tensor& tensor, int64_t divisor) {
  if (divisor == 1) return;
  if (c10::isIntegralType(tensor.scalar_type(), true)) {
    tensor.div_(divisor, "trunc");
  } else {
    tensor.div_(divisor);
  }
}

int64_t total_numel(const Tensors& tensors) {
  int64_t total = 0;
  for (const auto& tensor : tensors) total += tensor.numel();
  return total;
}

const bringup_driver& driver() { return *loaded; }

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor movable(const at::Tensor& host) {
  return gloo_has(host.scalar_type()) ? host : host.unsqueeze(-1).view(at::kByte);
}

void use_driver(const bringup_driver* table, ThreadSwitch waits_in_place_of_events,
                bool host_sees_memory) {
  loaded = table;
  event_waits = waits_in_place_of_events;
  is_memory_seen = host_sees_memory;
}

NoEventErrors::NoEventErrors() : switch_(event_waits()), former_(std::exchange(switch_, true)) {}

std::string said() {
  const char* words = loaded->last_error != nullptr ? loaded->last_error() : nullptr;
  return words != nullptr ? words : "the driver says no more";
}

OwnStream::OwnStream(c10::Device device) : stream_(own_stream(device)), process_(getpid()) {}

// One that is not done, or cannot be asked, is never used again.
OwnStream::~OwnStream() {
  const auto device = stream_.device_index();
  if (getpid() != process_ || loaded->stream_query(device, handle_of(stream_)) != BRINGUP_OK) {
    return;
  }
  if (loaded->stream_synchronize(device, handle_of(stream_)) != BRINGUP_OK) {
    TORCH_WARN("a collective failed whose result was not waited for: ", said());
    return;
  }
  auto& [mutex, all] = free_streams();
  const std::lock_guard lock(mutex);
  all.push_back(stream_);
}

Reduction::Reduction(const c10d::ReduceOp& asked, at::ScalarType dtype, int size)
    : op(asked), wire(dtype) {
  const auto kind = asked.op_;
  const bool is_sum = kind == c10d::ReduceOp::SUM || kind == c10d::ReduceOp::AVG ||
                      kind == c10d::ReduceOp::PREMUL_SUM;
  bool is_computed = true;
  if (dtype == at::kBool) {  // of which the sum is "any", and never the byte 2
    is_computed = kind != c10d::ReduceOp::AVG && kind != c10d::ReduceOp::PREMUL_SUM;
    if (kind == c10d::ReduceOp::SUM) op = c10d::ReduceOp::MAX;
    if (kind == c10d::ReduceOp::PRODUCT) op = c10d::ReduceOp::MIN;
  } else if (c10::isComplexType(dtype)) {
    is_computed = is_sum && dtype != at::kComplexHalf;
    is_real = true;
    wire = c10::toRealValueType(dtype);
  } else {
    wire = integer_of_gloo(dtype);
    const bool is_order = kind == c10d::ReduceOp::MIN || kind == c10d::ReduceOp::MAX;
    const bool is_scaled = kind == c10d::ReduceOp::PREMUL_SUM;
    is_computed = gloo_has(wire) && !(dtype == at::kUInt64 && is_order) &&
                  !(is_scaled && !c10::isFloatingType(dtype));
  }
  TORCH_CHECK_NOT_IMPLEMENTED(is_computed, "ReduceOp.", name_of(kind), " of ", dtype,
                              " is not computed between processes: convert the tensor, or gather "
                              "it and reduce the parts");
  if (!is_sum || dtype == at::kBool) return;
  op = c10d::ReduceOp::SUM;
  if (kind == c10d::ReduceOp::AVG) divisor = size;
  if (kind != c10d::ReduceOp::PREMUL_SUM) return;
  const auto* given = static_cast<const c10d::PreMulSumSupplement*>(asked.supplement_.get());
  factor = given->tensor_factor.defined() ? given->tensor_factor.cpu()
                                          : at::scalar_tensor(given->double_factor, at::kDouble);
}

c10::Stream CopyStreams::of(c10::DeviceIndex device, Use use) {
  const std::lock_guard lock(mutex_);
  return streams_.try_emplace({device, use}, c10::Device(kDevice, device)).first->second.get();
}

bool CopyStreams::is_idle() const {
  return std::all_of(streams_.begin(), streams_.end(), [](const auto& stream) {
    return device_guard().queryStream(stream.second.get());
  });
}

at::Tensor CopyStreams::staging(at::IntArrayRef sizes, at::ScalarType type) {
  const std::lock_guard lock(mutex_);
  const auto free = std::find_if(kept_.begin(), kept_.end(), [&](const at::Tensor& one) {
    return one.use_count() == 1 && one.storage().use_count() == 1 && one.scalar_type() == type &&
           one.sizes() == sizes;
  });
  if (free != kept_.end() && is_idle()) return *free;
  at::Tensor made = pinned(sizes, type);
  if (made.nbytes() > kKeptBytes) return made;
  if (kept_.size() == kKeptTensors) kept_.erase(kept_.begin());
  kept_.push_back(made);
  return made;
}

void Loan::begin(const std::set<c10::DeviceIndex>& devices) {
  const auto guard = device_guard();
  for (const auto index : devices) {
    c10::Event& before = queued_.try_emplace(index, Queued{c10::Event(kDevice)}).first->second.done;
    const c10::Stream stream = guard.getStream(c10::Device(kDevice, index));
    if (guard.queryStream(stream)) {
      guard.synchronizeStream(stream);  // which tells what failed in it
    } else {
      before.record(stream);
    }
  }
}

void Loan::fetch(const at::Tensor& tensor, const at::Tensor& host) {
  const c10::StreamGuard in_copies(streams_->of(tensor.device().index(), Use::kIn));
  const c10::Stream stream = in_copies.current_stream();
  Queued& queued = queued_.at(tensor.device().index());
  if (!std::exchange(queued.has_copies, true)) queued.done.block(stream);
  host.copy_(tensor, /*non_blocking=*/true);
  device_guard().recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

void Loan::end() {
  for (auto& [index, queued] : queued_) {
    if (queued.has_copies) queued.done.record(streams_->of(index, Use::kIn));
  }
}

bool Loan::is_there() const {
  return std::all_of(queued_.begin(), queued_.end(),
                     [](const auto& queued) { return queued.second.done.query(); });
}

void Loan::wait() const {
  for (const auto& [index, queued] : queued_) queued.done.synchronize();
}

// Its numbers are there with complete_inputs().
at::Tensor Loan::converted(const at::Tensor& staging, at::ScalarType wire,
                           const at::Tensor& factor) {
  const bool is_same = wire == staging.scalar_type();
  const at::Tensor host = is_same ? staging : at::empty(staging.sizes(), wire);
  if (!is_same || factor.defined()) inputs_.push_back({staging, host, factor});
  return host;
}

void Loan::complete_inputs() {
  for (const auto& [staging, host, factor] : std::exchange(inputs_, {})) {
    host.copy_(staging);
    if (factor.defined()) host.mul_(factor);
  }
}

at::Tensor Loan::lend(const at::Tensor& tensor, Use use, const Reduction* reduction) {
  const auto type = tensor.scalar_type();
  const bool as_bytes = reduction == nullptr && !gloo_has(type);
  const auto wire = reduction != nullptr ? reduction->wire : type;
  const bool is_scaled = reduction != nullptr && reduction->factor.defined() && use != Use::kOut;
  const bool is_same = wire == type || as_bytes || (reduction != nullptr && reduction->is_real);
  at::Tensor host;
  void* view = nullptr;
  if (is_plain(tensor) && is_same && !is_scaled && tensor.numel() > 0 &&
      (view = host_view(tensor)) != nullptr) {
    host = at::from_blob(
        view, tensor.sizes(), [keep = tensor](void*) {}, tensor.options().device(at::kCPU));
  } else {
    host = streams_->staging(tensor.sizes(), type);
    if (use != Use::kOut) fetch(tensor, host);
    host = converted(host, is_same ? type : wire, is_scaled ? reduction->factor : at::Tensor());
    if (use != Use::kIn) written_.push_back({tensor, host});
  }
  if (as_bytes) host = movable(host);
  if (reduction != nullptr && reduction->is_real) host = at::view_as_real(host);
  if (reduction != nullptr && reduction->divisor > 1 && use != Use::kIn) {
    divided_.push_back(host);
    divisor_ = reduction->divisor;
  }
  return host;
}

Tensors Loan::lend(const Tensors& tensors, Use use, const Reduction* reduction) {
  Tensors hosts;
  for (const auto& tensor : tensors) hosts.push_back(lend(tensor, use, reduction));
  return hosts;
}

std::vector<Tensors> Loan::lend(const std::vector<Tensors>& lists, Use use) {
  std::vector<Tensors> hosts;
  for (const auto& list : lists) hosts.push_back(lend(list, use));
  return hosts;
}

at::Tensor Loan::lend_flat(const Tensors& tensors, Use use) {
  at::Tensor flat = pinned({total_numel(tensors)}, tensors.front().scalar_type());
  int64_t begin = 0;
  for (const auto& tensor : tensors) {
    const at::Tensor part = flat.narrow(0, begin, tensor.numel()).view(tensor.sizes());
    begin += tensor.numel();
    if (use == Use::kOut) {
      written_.push_back({tensor, part});
    } else {
      fetch(tensor, part);
    }
  }
  return flat;
}

at::Tensor Loan::lend_parts(const Tensors& parts, const at::Tensor& output, int64_t begin,
                            const Reduction& reduction) {
  const at::Tensor staging = lend_flat(parts, Use::kIn);
  const auto wire = reduction.is_real ? staging.scalar_type() : reduction.wire;
  const at::Tensor flat = converted(staging, wire, reduction.factor);
  const at::Tensor result = flat.narrow(0, begin, output.numel());
  written_.push_back({output, result.view(output.sizes())});
  if (reduction.divisor > 1) {
    divided_.push_back(result);
    divisor_ = reduction.divisor;
  }
  return reduction.is_real ? at::view_as_real(flat) : flat;
}

void Loan::give_back() {
  at::NoGradGuard no_grad;
  for (const auto& tensor : divided_) divide_by(tensor, divisor_);
  for (const auto& lent : written_) {
    const auto index = lent.device.device().index();
    const c10::StreamGuard in_copies(given_back_in(index));
    at::Tensor host = lent.host;
    if (host.scalar_type() != lent.device.scalar_type()) {
      host = pinned(host.sizes(), lent.device.scalar_type()).copy_(host);
    }
    lent.device.copy_(host, /*non_blocking=*/true);
    lent.device.record_stream(in_copies.current_stream());
    given_back_.try_emplace(index, kDevice);
  }
  for (auto& [index, event] : given_back_) event.record(given_back_in(index));
  written_.clear();
  divided_.clear();
}

void Loan::let_streams_wait() const {
  for (const auto& [index, event] : given_back_) {
    event.block(device_guard().getStream(c10::Device(kDevice, index)));
  }
}

}  // namespace bringup::distributed
