#include "torch/ops/boxed.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/stack.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>

#include <algorithm>

#include "torch/ops/autograd.h"
#include "torch/ops/frame.h"

namespace bringup::torch_ext {
namespace {

c10::ArrayRef<c10::IValue> inputs_of(const KernelOp& op, const c10::Stack& stack) {
  return torch::jit::last(stack, op.arguments.size());
}

std::vector<at::Tensor> written_tensors(const KernelOp& op, c10::ArrayRef<c10::IValue> inputs) {
  std::vector<at::Tensor> written;
  for (const int32_t i : op.tensor_arguments) {
    if (!op.arguments[i].mutated) continue;
    if (inputs[i].isTensor()) written.push_back(inputs[i].toTensor());
    if (inputs[i].isTensorList()) {
      for (const at::Tensor& tensor : inputs[i].toTensorVector()) written.push_back(tensor);
    }
  }
  return written;
}

// The tensors among the inputs on a stack. Scalars are not touched: they may be symbolic here.
struct StackTensors {
  StackTensors(const KernelOp& op, c10::ArrayRef<c10::IValue> inputs) {
    for (const int32_t i : op.tensor_arguments) {
      single[i] = nullptr;
      if (inputs[i].isTensor()) {
        const at::Tensor& tensor = inputs[i].toTensor();
        if (!tensor.defined()) continue;
        single[i] = &tensor;
        all.push_back(&tensor);
      } else if (inputs[i].isList()) {
        for (const c10::IValue& item : inputs[i].toListRef()) all.push_back(&item.toTensor());
      }
    }
  }

  bool any_requires_grad() const {
    return std::any_of(all.begin(), all.end(),
                       [](const at::Tensor* t) { return t->requires_grad(); });
  }

  const at::Tensor* single[kMaxArguments];
  c10::SmallVector<const at::Tensor*, 8> all;
};

void refuse_tangents(const KernelOp& op, const StackTensors& tensors) {
  for (const at::Tensor* tensor : tensors.all) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !has_tangent(*tensor), op.name,
        " has no forward-mode derivative, but an input carries a tangent "
        "(torch.func.jvp, torch.autograd.forward_ad). Use reverse mode instead.");
  }
}

class AutogradKernel final : public c10::OperatorKernel {
 public:
  explicit AutogradKernel(const KernelOp& op) : op_(op) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, c10::Stack* stack) {
    const c10::ArrayRef<c10::IValue> inputs = inputs_of(op_, *stack);
    const StackTensors tensors(op_, inputs);
    refuse_tangents(op_, tensors);
    if (!at::GradMode::is_enabled() || !tensors.any_requires_grad()) {
      return redispatch(handle, keys, stack);
    }
    if (op_.mutates) return call_mutating(handle, keys, stack, inputs, tensors);
    const Backward* backward = op_.backward.load(std::memory_order_acquire);
    if (backward == nullptr) return call_without_backward(handle, keys, stack, tensors);
    if (!receives_gradient(*backward, tensors.single)) return redispatch(handle, keys, stack);

    Constants constants;
    for (const int32_t i : backward->constants) constants.push_back(inputs[i]);
    const auto node = make_backward_node(op_, *backward, tensors.single, std::move(constants));
    redispatch(handle, keys, stack);
    const auto outputs = fresh_outputs(*stack);
    set_outputs(node, outputs);
    save_outputs(*backward, node, outputs);
  }

 private:
  static void redispatch(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                         c10::Stack* stack) {
    const at::AutoDispatchBelowAutograd guard;
    handle.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  }

  c10::SmallVector<at::Tensor, 4> fresh_outputs(const c10::Stack& stack) const {
    c10::SmallVector<at::Tensor, 4> outputs;
    for (const c10::IValue& result : torch::jit::last(stack, op_.outputs.size())) {
      outputs.push_back(result.toTensor());
    }
    return outputs;
  }

  void call_without_backward(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                             c10::Stack* stack, const StackTensors& tensors) {
    const auto node = make_missing_node(op_, tensors.all);
    redispatch(handle, keys, stack);
    set_outputs(node, fresh_outputs(*stack));
  }

  void call_mutating(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, c10::Stack* stack,
                     c10::ArrayRef<c10::IValue> inputs, const StackTensors& tensors) {
    const std::vector<at::Tensor> written = written_tensors(op_, inputs);
    for (const at::Tensor& tensor : written) {
      torch::autograd::check_inplace(tensor, /*requires_grad=*/true);
    }
    const auto node = make_missing_node(op_, tensors.all);
    redispatch(handle, keys, stack);
    torch::autograd::rebase_history(written, node);
    set_outputs(node, fresh_outputs(*stack));
  }

  const KernelOp& op_;
};

class InplaceKernel final : public c10::OperatorKernel {
 public:
  explicit InplaceKernel(const KernelOp& op) : op_(op) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, c10::Stack* stack) {
    const std::vector<at::Tensor> written = written_tensors(op_, inputs_of(op_, *stack));
    {
      const at::AutoDispatchBelowADInplaceOrView guard;
      handle.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
    }
    for (const at::Tensor& tensor : written) torch::autograd::increment_version(tensor);
  }

 private:
  const KernelOp& op_;
};

class BackendKernel final : public c10::OperatorKernel {
 public:
  explicit BackendKernel(const KernelOp& op) : op_(op) {}

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, c10::Stack* stack) {
    Frame frame(op_);
    frame.load(inputs_of(op_, *stack));
    check_contract(frame);
    frame.copy_refused_layouts();
    const Variant& variant = variant_for(op_, frame);
    allocate_outputs(frame);
    run_kernel(frame, variant);
    torch::jit::drop(*stack, op_.arguments.size());
    for (at::Tensor& output : frame.outputs()) stack->emplace_back(std::move(output));
  }

 private:
  const KernelOp& op_;
};

}  // namespace

c10::KernelFunction backend_kernel(const KernelOp& op) {
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<BackendKernel>(op));
}

c10::KernelFunction autograd_kernel(const KernelOp& op) {
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<AutogradKernel>(op));
}

c10::KernelFunction inplace_kernel(const KernelOp& op) {
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<InplaceKernel>(op));
}

}  // namespace bringup::torch_ext
