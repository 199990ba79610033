// What the recorder makes of a call that ran: a node with arguments at fixed addresses.
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <utility>

#include "torch/devices/copies.h"
#include "torch/devices/driver.h"
#include "torch/devices/row_layout.h"
#include "torch/graphs/errors.h"
#include "torch/graphs/foreign_node.h"
#include "torch/graphs/outside_capture.h"
#include "torch/graphs/recorder.h"
#include "torch/graphs/slot_type.h"
#include "torch/graphs/values.h"
#include "torch/operators/operator_kernel.h"

namespace bringup::torch_ext::graphs {
namespace {

c10::Storage private_copy(const c10::Storage& storage) {
  const InterceptorScope no_interceptor{nullptr};
  at::DataPtr data = c10::GetCPUAllocator()->clone(storage.data(), storage.nbytes());
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(data), nullptr, false));
}

std::vector<at::Tensor> fresh(const std::vector<OperatorNode::Output>& outputs) {
  std::vector<at::Tensor> tensors;
  for (const OperatorNode::Output& output : outputs) {
    if (!output.fixed) tensors.push_back(output.tensor);
  }
  return tensors;
}

// Our kernel that ran this call; null where the call fell back or was another library's.
const KernelRecord* kernel_that_ran(const c10::OperatorHandle& op,
                                    const std::vector<c10::IValue>& args,
                                    const std::vector<OperatorNode::Output>& outputs,
                                    bool on_device) {
  const KernelRecord* kernel = find_kernel(op);
  if (kernel == nullptr || !kernel->runs_on(on_device ? c10::kPrivateUse1 : c10::kCPU)) {
    return nullptr;
  }
  // Written through a lazy negation: what resolves it below us writes back afterwards.
  if (any_tensor(args, is_lazy)) return nullptr;
  return kernel->pack(args, fresh(outputs)) ? kernel : nullptr;
}

}  // namespace

void check_layout(const OperatorTraits& traits, const at::Tensor& tensor,
                  const c10::Argument* argument) {
  if (tensor.has_storage() && !tensor.is_nested()) return;
  throw CaptureFailure(traits.name + (argument != nullptr ? " takes" : " gives") +
                       " a tensor of layout " +
                       (tensor.is_nested() ? "nested" : c10::str(tensor.layout())) +
                       (argument != nullptr ? " (argument '" + argument->name() + "')" : "") +
                       ": only strided tensors have the fixed memory that a captured graph needs");
}

void check_device(const OperatorTraits& traits, const at::Tensor& tensor) {
  const c10::Device device = tensor.device();
  if (device.is_cpu() || device.is_privateuseone() || device.is_meta()) return;
  throw CaptureFailure(traits.name + " works on " + device.str() +
                       ": a captured graph holds work of the cpu and of the loaded driver's "
                       "device. Use the graphs of that backend (torch.cuda.CUDAGraph)");
}

void refuse_foreign(const std::string& name, const std::string& kernel) {
  throw CaptureFailure(name + " runs a kernel on the device that starts its own work (" + kernel +
                       "), which a captured graph cannot hold. Declare the kernel with "
                       "devices.kernel or ops.kernel_op, or run the operator between two graphs");
}

c10::Stream Recorder::current_stream(c10::DeviceIndex device) {
  const c10::Device place(c10::kPrivateUse1, device);
  return c10::impl::getDeviceGuardImpl(place.type())->getStream(place);
}

at::Tensor Recorder::fixed(const OperatorTraits& traits, const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  if (storage.nbytes() == 0) return shallow_copy(tensor);
  if (Block* block = pool_->find(storage)) {
    // A Python number in tensor form: nothing writes it again.
    if (!block->written && tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      return shallow_copy(tensor, private_copy(storage));
    }
    return shared_copy(block->copies, tensor, alias_storage(*block));
  }
  inputs_.use(tensor, traits.name);
  return shared_copy(copies_[storage.unsafeGetStorageImpl()], tensor, storage);
}

// The arguments of the next node as it will hold them. Those that it only reads and that predate
// the capture are slots where it can be updated, unless a result is in the memory of one.
std::vector<c10::IValue> Recorder::fixed_arguments(const OperatorTraits& traits,
                                                   const std::vector<c10::IValue>& args,
                                                   const std::vector<OperatorNode::Output>& outputs,
                                                   bool is_kernel) {
  const bool updatable = is_kernel || traits.updatable || all_updatable_;
  const auto exchangeable = [&](const at::Tensor& tensor) {
    const bool given_back = std::ranges::any_of(outputs, [&](const OperatorNode::Output& output) {
      return output.fixed && output.tensor.storage().is_alias_of(tensor.storage());
    });
    return !given_back && tensor.storage().nbytes() > 0 && predates(tensor);
  };
  std::vector<c10::IValue> held;
  held.reserve(args.size());
  for (size_t i = 0; i < args.size(); ++i) {
    held.push_back(
        map_tensors(args[i], [&](const at::Tensor& tensor) { return fixed(traits, tensor); }));
    if (!updatable) continue;
    const auto type = SlotType::of(traits.schema->arguments()[i]);
    if (!type || !type->is_tensor() || call_writes(*traits.schema, i, args)) continue;
    bool all = !held[i].isTensor() || held[i].toTensor().defined();
    for_each_tensor(args[i], [&](const at::Tensor& tensor) { all &= exchangeable(tensor); });
    if (all) inputs_.add_slot(nodes_.size(), i, held[i]);
  }
  return held;
}

bool Recorder::runs_on_device(const std::vector<c10::IValue>& args,
                              c10::ArrayRef<c10::IValue> results) {
  bool on_device = false;
  const auto look = [&](const at::Tensor& tensor) {
    if (!tensor.is_privateuseone()) return;
    use_device(tensor.device().index());
    on_device = true;
  };
  for_each_tensor(args, look);
  for_each_tensor(results, look);
  return on_device;
}

std::optional<std::vector<OperatorNode::Output>> Recorder::outputs_of(
    const OperatorTraits& traits, const std::vector<c10::IValue>& args,
    c10::ArrayRef<c10::IValue> results, bool on_device) {
  c10::SmallVector<const c10::StorageImpl*, 8> of_args;
  for_each_tensor(args, [&](const at::Tensor& tensor) {
    of_args.push_back(tensor.storage().unsafeGetStorageImpl());
  });
  std::vector<OperatorNode::Output> outputs;
  bool real = true;
  for_each_tensor(results, [&](const at::Tensor& tensor) {
    real &= !is_subclass(tensor) && !tensor.is_meta();
    if (!real) return;
    check_device(traits, tensor);
    check_layout(traits, tensor);
    copies_to_host_ |= on_device && tensor.is_cpu();
    const bool in_place =
        std::ranges::find(of_args, tensor.storage().unsafeGetStorageImpl()) != of_args.end();
    at::Tensor output = fixed(traits, tensor);
    void* address = output.storage().mutable_data();
    outputs.push_back({std::move(output), address, in_place});
  });
  if (!real || (outputs.empty() && !traits.mutates && !traits.asserts)) return std::nullopt;
  return outputs;
}

std::unique_ptr<Node> Recorder::make_node(const OperatorTraits& traits,
                                          const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                          const std::vector<c10::IValue>& given,
                                          c10::ArrayRef<c10::IValue> results,
                                          std::vector<Allocation> allocations,
                                          const std::optional<std::string>& made_of) {
  const bool on_device = runs_on_device(given, results);
  if (on_device) streams_.ran(current_stream(*at_), traits.name);
  const auto& foreign = traits.foreign ? traits.foreign : made_of;
  const bool draws = traits.may_draw_unseen || (traits.may_draw && random_.drew());
  const bool is_captured = on_device && !draws && controls_.empty() && ForeignNode::is_possible();
  if (on_device && draws && !controls_.empty()) random_.draw_at_run_time();
  if (foreign && !is_captured && (on_device || made_of)) refuse_foreign(traits.name, *foreign);
  auto outputs = outputs_of(traits, given, results, on_device);
  if (!outputs) return nullptr;
  const auto below_autograd = (keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER,
                                                          c10::DispatchKey::ADInplaceOrView))
                                  .remove(c10::DispatchKey::Python);
  if (foreign && on_device) {
    OperatorNode::Call call{op,
                            traits.schema,
                            below_autograd,
                            fixed_arguments(traits, given, *outputs, false),
                            *std::move(outputs),
                            std::move(allocations),
                            std::nullopt,
                            false,
                            std::nullopt};
    return std::make_unique<ForeignNode>(traits.name, scope_, std::move(call), *foreign, pool_);
  }
  // A generator of the CPU has no offsets: the operator draws as it is called.
  const bool draws_on_host = traits.may_draw && !on_device;
  const KernelRecord* const kernel =
      draws_on_host ? nullptr : kernel_that_ran(op, given, *outputs, on_device);
  std::vector<c10::IValue> args = fixed_arguments(traits, given, *outputs, kernel != nullptr);
  if (kernel != nullptr) {
    const auto random = random_of(traits, args, on_device);
    auto draws = random ? (random->given ? random->given : random->inside) : std::nullopt;
    if (draws && !computes()) draws->count = traits.numbers.draws(args.data()) ? 1 : 0;
    if (draws && draws->count == 0) draws.reset();  // it evaluates
    auto node = std::make_unique<KernelNode>(
        traits.name, scope_,
        KernelNode::Call{traits.schema, *kernel, std::move(args), fresh(*outputs), draws});
    if (on_device) node->start_on_device(*at_);
    return node;
  }
  if (auto copy = make_copy_node(traits, args, *outputs)) return copy;
  if (auto fill = make_fill_node(traits, args, *outputs)) return fill;
  auto random = random_of(traits, args, on_device);
  OperatorNode::Call call{op,
                          traits.schema,
                          below_autograd,
                          std::move(args),
                          *std::move(outputs),
                          std::move(allocations),
                          traits.out,
                          traits.updatable || all_updatable_,
                          std::move(random)};
  call.from_shapes = !computes();
  if (on_device) {
    call.allocations.clear();
    call = host_side_.translate(traits.name, std::move(call));
    call.learn = !call.from_shapes;
  }
  return std::make_unique<OperatorNode>(traits.name, scope_, std::move(call));
}

// What a call took of generators, which `args` lose: a graph keeps none alive, since nothing else
// could seed one that only the graph has.
std::optional<NodeRandom> Recorder::random_of(const OperatorTraits& traits,
                                              std::vector<c10::IValue>& args, bool on_device) {
  if (!traits.may_draw) return std::nullopt;
  if (!computes() && !on_device) random_.may_draw(traits.name);
  auto random = random_.for_node(traits.name, traits.numbers, args, on_device ? at_ : std::nullopt);
  for (c10::IValue& arg : args) {
    if (arg.isGenerator()) arg = c10::IValue();
  }
  return random;
}

// A copy that the driver makes, or a kernel; null for what is none within a device, or one that
// neither can.
std::unique_ptr<Node> Recorder::make_copy_node(const OperatorTraits& traits,
                                               const std::vector<c10::IValue>& args,
                                               const std::vector<OperatorNode::Output>& outputs) {
  if (!traits.is_copy() || traits.updatable || all_updatable_ || copies_on_host()) return nullptr;
  const at::Tensor& source = args[traits.mutates ? 1 : 0].toTensor();
  const at::Tensor& target = outputs.front().tensor;
  const bool within = source.is_privateuseone() && target.device() == source.device();
  if (!within || target.numel() == 0) return nullptr;
  const auto layout = RowLayout::of(source, target);
  if (active_driver()->graph_add_copy != nullptr && layout && layout->height == 1) {
    return std::make_unique<DeviceCopyNode>(traits.name, scope_, traits.schema, source, target);
  }
  return make_copy_kernel(traits, source, target);
}

std::unique_ptr<Node> Recorder::make_copy_kernel(const OperatorTraits& traits,
                                                 const at::Tensor& source,
                                                 const at::Tensor& target) {
  auto call = native_copy(source, target);
  if (!call || !call->kernel->pack(call->arguments, {})) return nullptr;
  const auto schema = std::make_shared<const c10::FunctionSchema>(call->kernel->handle.schema());
  auto node = std::make_unique<KernelNode>(
      traits.name, scope_, KernelNode::Call{schema, *call->kernel, std::move(call->arguments), {}});
  node->start_on_device(*at_);
  return node;
}

// A copy of one element to all places. Null for other operators, and a number that is a tensor's,
// which may hold another one at a replay.
std::unique_ptr<Node> Recorder::make_fill_node(const OperatorTraits& traits,
                                               const std::vector<c10::IValue>& args,
                                               const std::vector<OperatorNode::Output>& outputs) {
  if (outputs.empty() || !outputs.front().tensor.is_privateuseone()) return nullptr;
  const bool zero = traits.name == "aten::zero_";
  const bool fills =
      zero || traits.name == "aten::fill_.Scalar" || traits.name == "aten::fill_.Tensor";
  if (!fills || traits.updatable || all_updatable_ || copies_on_host()) return nullptr;
  const at::Tensor& target = outputs.front().tensor;
  if (target.numel() == 0) return nullptr;
  const c10::IValue value = zero ? c10::IValue(at::Scalar(0)) : args[1];
  if (value.isTensor() && !value.toTensor().unsafeGetTensorImpl()->is_wrapped_number()) {
    return make_copy_kernel(traits, value.toTensor(), target);
  }
  const OutsideCapture outside;
  // The host converts a number for a single element otherwise than for several.
  const at::Tensor elements = at::empty({std::min<int64_t>(target.numel(), 2)}, target.options());
  elements.fill_(value.isTensor() ? value.toTensor().item() : value.toScalar());
  return make_copy_kernel(traits, elements.select(0, 0), target);
}

}  // namespace bringup::torch_ext::graphs
