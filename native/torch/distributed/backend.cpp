#include "torch/distributed/backend.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <Python.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <set>

namespace bringup::distributed {
namespace {

using c10d::OpType;

Tensors flat(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

std::vector<Tensors> lists(const Tensors& list) { return {list}; }
const std::vector<Tensors>& lists(const std::vector<Tensors>& given) { return given; }

void check(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.device().type() == kDevice, "backend 'bringup' got a tensor of ",
                    tensor.device(), ": expected one of its device; init_process_group(\"cpu:gloo,",
                    c10::get_privateuse1_backend(), ":bringup\") has a backend for both");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "backend 'bringup' got a tensor of layout ",
                    tensor.layout(), ": expected a dense one");
}

// Bytes of another meaning would be moved, or numbers rounded, without a word.
void check_dtype(const at::Tensor& tensor, const at::Tensor& first) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == first.scalar_type(),
                   "expected tensors of one dtype in a collective, got ", first.scalar_type(),
                   " and ", tensor.scalar_type());
}

const at::Tensor& only(const Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "expected one tensor, got ", tensors.size());
  return tensors.front();
}

// Where tensors of a coalesced collective have several dtypes: a collective for each, over the
// numbers of its tensors. Null: they have one.
template <class Call>
WorkPtr for_each_dtype(const Tensors& tensors, Call call) {
  std::map<at::ScalarType, std::vector<size_t>> numbers;
  for (size_t i = 0; i < tensors.size(); ++i) numbers[tensors[i].scalar_type()].push_back(i);
  if (numbers.size() < 2) return {};
  std::vector<WorkPtr> works;
  for (const auto& [type, chosen] : numbers) works.push_back(call(chosen));
  return c10::make_intrusive<GroupWork>(std::move(works));
}

template <class T>
std::vector<T> chosen_of(const std::vector<T>& all, const std::vector<size_t>& numbers) {
  std::vector<T> chosen;
  for (const size_t number : numbers) chosen.push_back(all.at(number));
  return chosen;
}

// gloo cuts the first dimension into parts; the memory is meant.
at::Tensor in_one_row(const at::Tensor& host) { return host.view(-1); }

bool have_equal_numel(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.numel() == tensors.front().numel();
  });
}

std::vector<size_t> bytes_of(const Tensors& tensors) {
  std::vector<size_t> bytes;
  for (const auto& tensor : tensors) bytes.push_back(tensor.nbytes());
  return bytes;
}

// Of the parts of a tensor that is cut along its first dimension; none: it cannot be cut so.
std::vector<size_t> bytes_of_parts(const at::Tensor& tensor, std::vector<int64_t> rows, int size) {
  const int64_t all = tensor.dim() == 0 ? 0 : tensor.size(0);
  if (rows.empty() && all % size == 0) rows.assign(static_cast<size_t>(size), all / size);
  const bool fits = static_cast<int>(rows.size()) == size &&
                    std::all_of(rows.begin(), rows.end(), [](int64_t n) { return n >= 0; }) &&
                    std::accumulate(rows.begin(), rows.end(), int64_t{0}) == all;
  if (!fits) return {};
  std::vector<size_t> bytes;
  for (const int64_t n : rows) {
    bytes.push_back(n == 0 ? 0
                           : tensor.nbytes() / static_cast<size_t>(all) * static_cast<size_t>(n));
  }
  return bytes;
}

std::vector<int64_t> counts(const Tensors& tensors) {
  std::vector<int64_t> counts;
  for (const auto& tensor : tensors) counts.push_back(tensor.numel());
  return counts;
}

}  // namespace

DeviceBackend::DeviceBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                             const c10::intrusive_ptr<Options>& options, MakeGloo make_gloo,
                             bool by_driver)
    : Backend(rank, size),
      options_(options),
      make_gloo_(std::move(make_gloo)),
      gloo_(make_gloo_(store, rank, size, options->timeout)),
      own_(by_driver && DriverGroup::is_possible() ? std::make_unique<DriverGroup>(gloo_)
                                                   : nullptr),
      poster_(std::make_unique<Poster>(refusal)),
      process_(getpid()) {}

DeviceBackend::~DeviceBackend() {
  if (getpid() != process_) {  // whose threads stayed in the parent
    poster_.release();         // NOLINT(bugprone-unused-return-value)
    own_.release();            // NOLINT(bugprone-unused-return-value)
    gloo_.release();
    return;
  }
  PyThreadState* const held = PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr;
  own_.reset();
  poster_->stop();
  gloo_.reset();
  if (held != nullptr) PyEval_RestoreThread(held);  // which the threads may have needed to end
}

Tensors DeviceBackend::checked(const std::vector<Tensors>& inputs, const Tensors& outputs) const {
  TORCH_CHECK(getpid() == process_,
              "this process group belongs to the process that this one was "
              "forked from: spawn processes, and call "
              "init_process_group() in each");
  Tensors all = flat(inputs);
  all.insert(all.end(), outputs.begin(), outputs.end());
  for (const at::Tensor& tensor : all) {
    check(tensor);
    check_dtype(tensor, all.front());
  }
  for (const at::Tensor& output : outputs) at::assert_no_internal_overlap(output);
  return all;
}

void DeviceBackend::check_rank(int64_t rank) const {
  TORCH_CHECK_VALUE(rank >= 0 && rank < getSize(), "expected a rank of this group, 0 to ",
                    getSize() - 1, ", got ", rank);
}

WorkPtr DeviceBackend::start_own(OpType op, const std::vector<Tensors>& inputs,
                                 const Tensors& outputs, const DriverGroup::Give& give) {
  if (own_ == nullptr) return {};
  const Tensors all = checked(inputs, outputs);
  if (all.empty()) return {};
  auto work = own_->start(op, all, outputs, options_->timeout, give);
  return work ? started(std::move(work)) : work;
}

WorkPtr DeviceBackend::started(WorkPtr work) {
  const std::lock_guard lock(coalescing_);
  if (coalesced_.has_value()) coalesced_->push_back(work);
  return work;
}

WorkPtr DeviceBackend::start(OpType op, const std::vector<Tensors>& inputs, Tensors outputs,
                             Lend lend) {
  std::set<c10::DeviceIndex> devices;
  for (const at::Tensor& tensor : checked(inputs, outputs)) devices.insert(tensor.device().index());
  if (op == OpType::BARRIER) devices.insert(device_guard().getDevice().index());
  auto work = c10::make_intrusive<DeviceWork>(op, std::move(outputs), copy_streams_);
  try {
    submit(work, devices, lend);
  } catch (...) {
    const bool is_refused = std::any_of(devices.begin(), devices.end(), [](auto index) {
      return is_captured(device_guard().getStream(c10::Device(kDevice, index)));
    });
    if (!is_refused) poster_->break_off(std::current_exception());
    throw;
  }
  return started(work);
}

void DeviceBackend::submit(const c10::intrusive_ptr<DeviceWork>& work,
                           const std::set<c10::DeviceIndex>& devices, Lend lend) {
  const at::NoGradGuard no_grad;
  Loan& loan = work->loan();
  loan.begin(devices);
  Post post = lend(loan);
  loan.end();
  Job job;
  job.is_ready = [work] { return work->loan().is_there(); };
  job.wait = [work] { work->loan().wait(); };
  job.fail = [work](std::exception_ptr error) { work->failed(std::move(error)); };
  job.post = [work, gloo = gloo_, post = std::move(post)] {
    const at::NoGradGuard no_grad;
    work->loan().complete_inputs();
    work->posted(post(*gloo));
  };
  poster_->submit(std::move(job));
}

template <class Inputs, class Outputs, class Call>
WorkPtr DeviceBackend::exchange(OpType op, const Inputs& inputs, const Outputs& outputs,
                                Call call) {
  return start(op, lists(inputs), flat(lists(outputs)), [&](Loan& loan) -> Post {
    auto from = loan.lend(inputs, Use::kIn);
    auto to = loan.lend(outputs, Use::kOut);
    return [=](auto& gloo) mutable { return call(gloo, to, from); };
  });
}

template <class Asked, class Call>
WorkPtr DeviceBackend::reduced(OpType op, const Tensors& tensors, const Asked& options, Call call) {
  const auto type = tensors.front().scalar_type();
  const Reduction reduction(options.reduceOp, type, getSize());
  const OwnReduction own(reduction, type);
  if (own.is_known() && op != OpType::REDUCE) {
    auto work = start_own(op, {}, tensors, [&](const Queue& queue) {
      for (const auto& tensor : tensors) {
        if (tensor.numel() == 0) continue;
        const at::Tensor all = queue.plain(tensor);
        void* const at = all.mutable_data_ptr();
        const int32_t status = driver().all_reduce(
            queue.comm, at, at, static_cast<size_t>(all.numel()), own.dtype, own.op, queue.stream);
        if (status != BRINGUP_OK) return status;
        own.divide(all);
        Queue::give_back(all, {tensor});
      }
      return int32_t{BRINGUP_OK};
    });
    if (work) return work;
  }
  return start(op, {}, tensors, [&](Loan& loan) -> Post {
    auto chosen = options;
    chosen.reduceOp = reduction.op;
    auto hosts = loan.lend(tensors, Use::kInOut, &reduction);
    return [=](auto& gloo) mutable { return call(gloo, hosts, chosen); };
  });
}

void DeviceBackend::startCoalescing() {
  const std::lock_guard lock(coalescing_);
  coalesced_.emplace();
}

WorkPtr DeviceBackend::endCoalescing() {
  const std::lock_guard lock(coalescing_);
  TORCH_CHECK(coalesced_.has_value(), "endCoalescing() without startCoalescing()");
  auto works = std::move(*coalesced_);
  coalesced_.reset();
  return c10::make_intrusive<GroupWork>(std::move(works));
}

void DeviceBackend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  gloo_->setTimeout(timeout);
}

BackendPtr DeviceBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                const std::vector<int>& ranks,
                                const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  const auto found = std::find(ranks.begin(), ranks.end(), getRank());
  if (found == ranks.end()) return {};
  auto chosen = c10::make_intrusive<Options>("bringup", options->timeout);
  chosen->group_name = options->group_name;
  chosen->group_desc = options->group_desc;
  for (const int rank : ranks) {
    const auto& global = options_->global_ranks_in_group;
    chosen->global_ranks_in_group.push_back(global.empty() ? static_cast<uint64_t>(rank)
                                                           : global[static_cast<size_t>(rank)]);
  }
  return c10::make_intrusive<DeviceBackend>(store, static_cast<int>(found - ranks.begin()),
                                            static_cast<int>(ranks.size()), chosen, make_gloo_,
                                            own_ != nullptr);
}

void DeviceBackend::eagerConnectSingleDevice(at::Device device) {
  if (own_ != nullptr) own_->connect(device, options_->timeout);
}

void DeviceBackend::shutdown() {
  if (own_ != nullptr && getpid() == process_) own_->stop();
  poster_->stop();
  gloo_->shutdown();
}

void DeviceBackend::abort() {
  if (own_ != nullptr) own_->abort();
  gloo_->abort();
  poster_->stop();
}

WorkPtr DeviceBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  check_rank(options.rootRank);
  if (tensors.size() == 1) {
    const at::Tensor& tensor = tensors.front();
    auto work = start_own(OpType::BROADCAST, {}, tensors, [&](const Queue& queue) {
      if (tensor.numel() == 0) return int32_t{BRINGUP_OK};
      const at::Tensor all = queue.plain(tensor);
      const int32_t status =
          driver().broadcast(queue.comm, all.mutable_data_ptr(), all.nbytes(),
                             static_cast<int32_t>(options.rootRank), queue.stream);
      if (status == BRINGUP_OK) Queue::give_back(all, {tensor});
      return status;
    });
    if (work) return work;
  }
  return start(OpType::BROADCAST, {}, tensors, [&](Loan& loan) -> Post {
    auto hosts = loan.lend(tensors, Use::kInOut);
    return [=](auto& gloo) mutable { return gloo.broadcast(hosts, options); };
  });
}

WorkPtr DeviceBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  only(tensors);
  return reduced(OpType::ALLREDUCE, tensors, options, [](auto& gloo, auto& hosts, auto& chosen) {
    return gloo.allreduce(hosts, chosen);
  });
}

WorkPtr DeviceBackend::allreduce_coalesced(Tensors& tensors,
                                           const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK_VALUE(!tensors.empty(), "expected at least one tensor");
  if (auto works = for_each_dtype(tensors, [&](auto& numbers) {
        auto chosen = chosen_of(tensors, numbers);
        return allreduce_coalesced(chosen, options);
      })) {
    return works;
  }
  return reduced(OpType::ALLREDUCE_COALESCED, tensors, options,
                 [](auto& gloo, auto& hosts, auto& chosen) {
                   return gloo.allreduce_coalesced(hosts, chosen);
                 });
}

WorkPtr DeviceBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  only(tensors);
  check_rank(options.rootRank);
  return reduced(OpType::REDUCE, tensors, options,
                 [](auto& gloo, auto& hosts, auto& chosen) { return gloo.reduce(hosts, chosen); });
}

// To `outputs` as they lie one behind the other, all of the input's size; else null.
WorkPtr DeviceBackend::own_all_gather(OpType op, const Tensors& outputs, const at::Tensor& input) {
  if (!have_equal_numel(outputs) || total_numel(outputs) != input.numel() * getSize()) return {};
  return start_own(op, {{input}}, outputs, [&](const Queue& queue) {
    if (input.numel() == 0) return int32_t{BRINGUP_OK};
    const at::Tensor from = queue.plain(input);
    const at::Tensor to = outputs.size() == 1 ? queue.target(outputs.front())
                                              : at::empty({total_numel(outputs)}, from.options());
    const int32_t status = driver().all_gather(queue.comm, from.const_data_ptr(),
                                               to.mutable_data_ptr(), from.nbytes(), queue.stream);
    if (status == BRINGUP_OK) Queue::give_back(to, outputs);
    return status;
  });
}

WorkPtr DeviceBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::AllgatherOptions& options) {
  if (outputs.size() == 1 && inputs.size() == 1) {
    if (auto work = own_all_gather(OpType::ALLGATHER, outputs.front(), inputs.front())) return work;
  }
  return exchange(OpType::ALLGATHER, inputs, outputs, [options](auto& gloo, auto& to, auto& from) {
    return gloo.allgather(to, from, options);
  });
}

WorkPtr DeviceBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                       const c10d::AllgatherOptions& options) {
  if (auto work = own_all_gather(OpType::_ALLGATHER_BASE, {output}, input)) return work;
  return start(OpType::_ALLGATHER_BASE, {{input}}, {output}, [&](Loan& loan) -> Post {
    auto from = in_one_row(loan.lend(input, Use::kIn));
    auto to = in_one_row(loan.lend(output, Use::kOut));
    return [=](auto& gloo) mutable { return gloo._allgather_base(to, from, options); };
  });
}

// `outputs`: of each rank a list, as long as that of the inputs.
WorkPtr DeviceBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions& options) {
  std::vector<WorkPtr> works;
  for (const auto& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == inputs.size(), "expected lists of ", inputs.size(),
                      " outputs, got one of ", list.size());
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<Tensors> to(1);
    for (const auto& list : outputs) to.front().push_back(list[i]);
    Tensors from{inputs[i]};
    works.push_back(allgather(to, from, options));
  }
  return c10::make_intrusive<GroupWork>(std::move(works));
}

WorkPtr DeviceBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                       const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "expected as many outputs as inputs, got ",
                    outputs.size(), " and ", inputs.size());
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(_allgather_base(outputs[i], inputs[i], options));
  }
  return c10::make_intrusive<GroupWork>(std::move(works));
}

WorkPtr DeviceBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::GatherOptions& options) {
  check_rank(options.rootRank);
  return exchange(OpType::GATHER, inputs, outputs, [options](auto& gloo, auto& to, auto& from) {
    return gloo.gather(to, from, options);
  });
}

WorkPtr DeviceBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                               const c10d::ScatterOptions& options) {
  check_rank(options.rootRank);
  return exchange(OpType::SCATTER, inputs, outputs, [options](auto& gloo, auto& to, auto& from) {
    return gloo.scatter(to, from, options);
  });
}

// gloo's reduces the whole too, by works that end only in a wait.
WorkPtr DeviceBackend::scatter_reduced(OpType op, const Tensors& outputs,
                                       const std::vector<Tensors>& inputs,
                                       const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(!outputs.empty() && outputs.size() == inputs.size(),
                    "expected as many outputs as inputs, got ", outputs.size(), " and ",
                    inputs.size());
  const Reduction reduction(options.reduceOp, outputs.front().scalar_type(), getSize());
  std::vector<int64_t> begins;
  for (size_t i = 0; i < outputs.size(); ++i) {
    begins.push_back(part_of_rank(outputs[i], inputs[i]));
  }
  const OwnReduction own(reduction, outputs.front().scalar_type());
  const bool is_even = std::all_of(inputs.begin(), inputs.end(), have_equal_numel);
  if (own.is_known() && is_even) {
    auto work = start_own(op, inputs, outputs, [&](const Queue& queue) {
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (outputs[i].numel() == 0) continue;
        const at::Tensor from =
            inputs[i].size() == 1 ? queue.plain(inputs[i].front()) : queue.flat(inputs[i]);
        const at::Tensor to = queue.target(outputs[i]);
        const int32_t status = driver().reduce_scatter(
            queue.comm, from.const_data_ptr(), to.mutable_data_ptr(),
            static_cast<size_t>(to.numel()), own.dtype, own.op, queue.stream);
        if (status != BRINGUP_OK) return status;
        own.divide(to);
        Queue::give_back(to, {outputs[i]});
      }
      return int32_t{BRINGUP_OK};
    });
    if (work) return work;
  }
  return start(op, inputs, outputs, [&](Loan& loan) -> Post {
    c10d::AllreduceCoalescedOptions chosen;
    chosen.reduceOp = reduction.op;
    chosen.timeout = options.timeout;
    Tensors hosts;
    for (size_t i = 0; i < outputs.size(); ++i) {
      hosts.push_back(loan.lend_parts(inputs[i], outputs[i], begins[i], reduction));
    }
    return [=](auto& gloo) mutable {
      return hosts.size() == 1 ? gloo.allreduce(hosts, chosen)
                               : gloo.allreduce_coalesced(hosts, chosen);
    };
  });
}

// Where the elements of this rank's output begin in what is reduced.
int64_t DeviceBackend::part_of_rank(const at::Tensor& output, const Tensors& input) const {
  const auto rank = static_cast<size_t>(getRank());
  const auto size = static_cast<size_t>(getSize());
  const bool is_whole = input.size() == 1 && size > 1;
  TORCH_CHECK_VALUE(is_whole ? input[0].numel() == output.numel() * getSize()
                             : input.size() == size && input[rank].numel() == output.numel(),
                    "expected ", size, " parts of the output's ", output.numel(),
                    " elements to reduce, got ", total_numel(input), " elements in ", input.size(),
                    " tensors");
  if (is_whole) return getRank() * output.numel();
  int64_t begin = 0;
  for (size_t i = 0; i < rank; ++i) begin += input[i].numel();
  return begin;
}

WorkPtr DeviceBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                      const c10d::ReduceScatterOptions& options) {
  return scatter_reduced(OpType::REDUCE_SCATTER, {only(outputs)}, inputs, options);
}

WorkPtr DeviceBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                            const c10d::ReduceScatterOptions& options) {
  return scatter_reduced(OpType::_REDUCE_SCATTER_BASE, {output}, {{input}}, options);
}

WorkPtr DeviceBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                       const c10d::ReduceScatterOptions& options) {
  if (auto works = for_each_dtype(inputs, [&](auto& numbers) {
        auto from = chosen_of(inputs, numbers);
        auto to = chosen_of(outputs, numbers);
        return reduce_scatter_tensor_coalesced(to, from, options);
      })) {
    return works;
  }
  std::vector<Tensors> wholes;
  for (const at::Tensor& input : inputs) wholes.push_back({input});
  return scatter_reduced(OpType::REDUCE_SCATTER_TENSOR_COALESCED, outputs, wholes, options);
}

// Of the tensors as they lie one behind the other; null where parts are not known.
WorkPtr DeviceBackend::own_all_to_all(OpType op, const Tensors& outputs, const Tensors& inputs,
                                      const std::vector<size_t>& output_bytes,
                                      const std::vector<size_t>& input_bytes) {
  if (output_bytes.empty() || input_bytes.empty()) return {};
  return start_own(op, {inputs}, outputs, [&](const Queue& queue) {
    const bool is_one = inputs.size() == 1;
    const at::Tensor from = is_one ? queue.plain(inputs.front()) : queue.flat(inputs);
    const at::Tensor to =
        is_one ? queue.target(outputs.front()) : at::empty({total_numel(outputs)}, from.options());
    const int32_t status =
        driver().all_to_all(queue.comm, from.const_data_ptr(), input_bytes.data(),
                            to.mutable_data_ptr(), output_bytes.data(), queue.stream);
    if (status == BRINGUP_OK) Queue::give_back(to, outputs);
    return status;
  });
}

WorkPtr DeviceBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                     std::vector<int64_t>& output_sizes,
                                     std::vector<int64_t>& input_sizes,
                                     const c10d::AllToAllOptions& options) {
  if (auto work = own_all_to_all(OpType::ALLTOALL_BASE, {output}, {input},
                                 bytes_of_parts(output, output_sizes, getSize()),
                                 bytes_of_parts(input, input_sizes, getSize()))) {
    return work;
  }
  return start(OpType::ALLTOALL_BASE, {{input}}, {output}, [&](Loan& loan) -> Post {
    auto from = loan.lend(input, Use::kIn);
    auto to = loan.lend(output, Use::kOut);
    return [=, to_counts = output_sizes, from_counts = input_sizes](auto& gloo) mutable {
      return gloo.alltoall_base(to, from, to_counts, from_counts, options);
    };
  });
}

// gloo has none of lists: the parts lie one behind the other.
WorkPtr DeviceBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                const c10d::AllToAllOptions& options) {
  const auto size = static_cast<size_t>(getSize());
  TORCH_CHECK_VALUE(outputs.size() == size && inputs.size() == size, "expected ", size,
                    " tensors in each list, one a rank, got ", outputs.size(), " and ",
                    inputs.size());
  if (auto work =
          own_all_to_all(OpType::ALLTOALL, outputs, inputs, bytes_of(outputs), bytes_of(inputs))) {
    return work;
  }
  return start(OpType::ALLTOALL, {inputs}, outputs, [&](Loan& loan) -> Post {
    auto from = movable(loan.lend_flat(inputs, Use::kIn));
    auto to = movable(loan.lend_flat(outputs, Use::kOut));
    return [=, to_counts = counts(outputs), from_counts = counts(inputs)](auto& gloo) mutable {
      return gloo.alltoall_base(to, from, to_counts, from_counts, options);
    };
  });
}

WorkPtr DeviceBackend::send(Tensors& tensors, int destination, int tag) {
  check_rank(destination);
  return start(OpType::SEND, {tensors}, {}, [&](Loan& loan) -> Post {
    auto hosts = loan.lend(tensors, Use::kIn);
    return [=](auto& gloo) mutable { return gloo.send(hosts, destination, tag); };
  });
}

WorkPtr DeviceBackend::recv(Tensors& tensors, int source, int tag) {
  check_rank(source);
  return start(OpType::RECV, {}, tensors, [&](Loan& loan) -> Post {
    auto hosts = loan.lend(tensors, Use::kOut);
    return [=](auto& gloo) mutable { return gloo.recv(hosts, source, tag); };
  });
}

WorkPtr DeviceBackend::recvAnysource(Tensors& tensors, int tag) {
  return start(OpType::RECVANYSOURCE, {}, tensors, [&](Loan& loan) -> Post {
    auto hosts = loan.lend(tensors, Use::kOut);
    return [=](auto& gloo) mutable { return gloo.recvAnysource(hosts, tag); };
  });
}

WorkPtr DeviceBackend::barrier(const c10d::BarrierOptions& options) {
  return start(OpType::BARRIER, {}, {}, [&](Loan&) -> Post {
    return [options](auto& gloo) { return gloo.barrier(options); };
  });
}

}  // namespace bringup::distributed
