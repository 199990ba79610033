// What the recorder does about torch.cond and torch.while_loop, which
// src/bringup/graphs/_control_flow.py takes apart: nodes that may run or not, and operators that
// are recorded without running.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <utility>

#include "torch/devices/driver.h"
#include "torch/graphs/control_node.h"
#include "torch/graphs/outside_capture.h"
#include "torch/graphs/recorder.h"
#include "torch/graphs/values.h"
#include "torch/operators/operator_kernel.h"

namespace bringup::torch_ext::graphs {
namespace {

// The same sizes and strides without memory, on the device that computes shapes alone. A number in
// tensor form goes with any device.
at::Tensor meta_of(const at::Tensor& tensor) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  at::Tensor meta = at::empty_strided(tensor.sizes(), tensor.strides(),
                                      at::TensorOptions(at::kMeta).dtype(tensor.dtype()));
  c10::TensorImpl* impl = meta.unsafeGetTensorImpl();
  impl->_set_conj(tensor.is_conj());
  impl->_set_neg(tensor.is_neg());
  return meta;
}

// Where a call's results lie: on the device that it asks for, or that of its arguments.
c10::Device device_of(const OperatorTraits& traits, const std::vector<c10::IValue>& args) {
  if (traits.device >= 0 && args[static_cast<size_t>(traits.device)].isDevice()) {
    return args[static_cast<size_t>(traits.device)].toDevice();
  }
  c10::Device device(c10::kCPU);
  for_each_tensor(args, [&](const at::Tensor& tensor) {
    if (device.is_cpu()) device = tensor.device();
  });
  return device;
}

}  // namespace

bool Recorder::computes() const {
  return std::ranges::all_of(controls_, [](const Control& control) { return control.computes; });
}

// Memory that is there now is not handed out again before the end: a node of one branch or trip
// would overwrite what another one reads. Constants are put back here, as a branch that fills them
// may not run.
void Recorder::begin_control(std::string name) {
  Control control;
  control.name = std::move(name);
  for (const auto& block : pool_->live_blocks()) {
    if (!block->written && block->origin == Origin::kHostData) add_constant(*block);
    if (!block->storage) continue;
    if (auto storage = block->storage->lock()) control.held.push_back(std::move(storage));
  }
  controls_.push_back(std::move(control));
}

void Recorder::begin_branch(bool computes) {
  Control& control = controls_.back();
  control.computes = computes;
  for (auto& block : pool_->live_blocks()) {
    if (block->written) control.written_before.insert(std::move(block));
  }
}

void Recorder::end_branch() {
  Control& control = controls_.back();
  Blocks& written = control.written.emplace_back();
  for (auto& block : pool_->live_blocks()) {
    if (!block->written || control.written_before.contains(block)) continue;
    block->written = false;
    block->origin = Origin::kBranch;
    written.insert(std::move(block));
  }
  control.written_before.clear();
  control.computes = true;
}

void Recorder::end_control(bool exclusive) {
  const std::vector<Blocks> written = std::move(controls_.back().written);
  controls_.pop_back();
  if (!exclusive) return;
  for (const auto& block : written.front()) {
    block->written =
        std::ranges::all_of(written, [&](const Blocks& branch) { return branch.contains(block); });
  }
}

size_t Recorder::add_control(const std::optional<at::Tensor>& predicate) {
  OperatorTraits traits;
  traits.name = controls_.back().name;
  at::Tensor read;
  const void* on_device = nullptr;
  if (predicate) {
    check_device(traits, *predicate);
    check_readable(traits, *predicate);
    if (predicate->is_privateuseone()) use_device(predicate->device().index());
    read = fixed(traits, *predicate);
    if (read.is_privateuseone()) on_device = read.const_data_ptr();
    if (read.is_privateuseone() && driver_facts().host_visible) read = host_side_.view(read);
  }
  const bool is_slot = predicate && predicate->is_cpu() && predates(*predicate);
  if (is_slot) inputs_.add_slot(nodes_.size(), 0, read);
  auto node =
      std::make_unique<ControlNode>(traits.name, scope_, std::move(read), on_device, is_slot);
  node->set_line(lines_.here());
  nodes_.push_back(std::move(node));
  return nodes_.size() - 1;
}

void Recorder::go_to(size_t control, size_t target) {
  dynamic_cast<ControlNode&>(*nodes_.at(control)).go_to(target);
}

std::optional<size_t> Recorder::writer(const at::Tensor& tensor) const {
  const Block* block = tensor.has_storage() ? pool_->find(tensor.storage()) : nullptr;
  return block == nullptr || !block->written ? std::nullopt : std::optional(block->writer);
}

bool Recorder::is_written(const at::Tensor& tensor) const {
  return writer(tensor).has_value() ||
         (tensor.has_storage() && Restorer::any_remembers(tensor.storage()));
}

// Where most others run on the host a launch need not wait for what it would choose.
bool Recorder::copies_on_host() const {
  return !controls_.empty() && active_driver() != nullptr && driver_facts().host_visible &&
         !has_native_kernels();
}

void Recorder::infer(const OperatorTraits& traits, const c10::OperatorHandle& op,
                     std::vector<c10::IValue>* stack) const {
  const std::string& name = controls_.back().name;
  const size_t count = traits.schema->arguments().size();
  const std::vector<c10::IValue> args(stack->end() - static_cast<ptrdiff_t>(count), stack->end());
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) {
    throw CaptureFailure(traits.name + " has no kernel that gives its results' shapes (meta, " +
                         "register_fake), and " + name + " has to record it without running it");
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> metas;
  const auto as_meta = [&](const at::Tensor& tensor) {
    return metas.emplace_back(meta_of(tensor), tensor).first;
  };
  const auto back = [&](const at::Tensor& result) {
    const auto given =
        std::ranges::find_if(metas, [&](const auto& pair) { return pair.first.is_same(result); });
    if (given != metas.end() || !result.defined()) {
      return given != metas.end() ? given->second : result;
    }
    return at::empty_strided(result.sizes(), result.strides(),
                             at::TensorOptions(device_of(traits, args)).dtype(result.dtype()));
  };
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_modes(kUnseenKeys);
  const auto failure = failure_of([&] {
    const InterceptorScope no_interceptor{nullptr};
    torch::jit::drop(*stack, count);
    for (const c10::IValue& arg : args) stack->push_back(map_tensors(arg, as_meta));
    for (size_t i = 0; i < count; ++i) {
      c10::IValue& arg = torch::jit::peek(*stack, i, count);
      if (arg.isGenerator()) arg = c10::IValue();
      if (static_cast<int>(i) == traits.device) arg = c10::Device(c10::kMeta);
    }
    op.callBoxed(stack);
  });
  if (failure) {
    throw CaptureFailure(traits.name + " gives no results from shapes alone, and " + name +
                         " has to record it without running it: " + *failure);
  }
  for (const auto& [meta, tensor] : metas) {
    if (meta.sizes() == tensor.sizes()) continue;
    if (tensor.numel() == 0) {
      tensor.resize_(meta.sizes());
      continue;
    }
    throw CaptureFailure(traits.name + " gives " + describe(tensor) + " another shape, " + name +
                         " has to record it without running it: give it the right one before");
  }
  const bool learns = gradients_wanted_.value_or(c10::GradMode::is_enabled()) &&
                      any_tensor(args, [](const at::Tensor& t) { return t.requires_grad(); });
  const size_t first = stack->size() - traits.schema->returns().size();
  for (size_t i = first; i < stack->size(); ++i) (*stack)[i] = map_tensors((*stack)[i], back);
  for_each_tensor(torch::jit::last(*stack, traits.schema->returns().size()),
                  [&](const at::Tensor& result) {
                    if (!learns || !(result.is_floating_point() || result.is_complex())) return;
                    throw CaptureFailure(traits.name + " would record a gradient inside of " +
                                         name + ": run it under torch.no_grad()");
                  });
}

}  // namespace bringup::torch_ext::graphs
