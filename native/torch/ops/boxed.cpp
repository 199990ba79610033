#include "torch/ops/boxed.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/stack.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>

#include <algorithm>

#include "torch/common/values.h"
#include "torch/devices/registration.h"
#include "torch/ops/autograd.h"
#include "torch/ops/call.h"

namespace bringup::torch_ext {
namespace {

c10::ArrayRef<c10::IValue> inputs_of(const KernelOp& op, const c10::Stack& stack) {
  return torch::jit::last(stack, op.arguments.size());
}

std::vector<at::Tensor> written_tensors(const KernelOp& op, c10::ArrayRef<c10::IValue> inputs) {
  std::vector<at::Tensor> written;
  for (const int32_t i : op.tensor_arguments) {
    if (!op.arguments[i].mutated) continue;
    for_each_tensor(inputs[i], [&](const at::Tensor& tensor) { written.push_back(tensor); });
  }
  return written;
}

// One value for each return: the written arguments as they came, or the fresh outputs.
c10::Stack results_of(CallFrame& frame, c10::ArrayRef<c10::IValue> inputs) {
  c10::Stack results;
  if (frame.op().outputs.empty()) {
    for (const int32_t i : frame.op().returns) results.push_back(inputs[i]);
    return results;
  }
  at::Tensor* next = frame.outputs().data();
  for (size_t i = 0; i < frame.op().outputs.size(); ++i) {
    if (C10_UNLIKELY(frame.op().outputs[i].number)) {
      results.emplace_back(number_in(*next++));
      continue;
    }
    if (!frame.op().outputs[i].list) {
      results.emplace_back(std::move(*next++));
      continue;
    }
    c10::List<at::Tensor> list;
    for (int64_t k = frame.output_size(static_cast<int>(i)); k > 0; --k) {
      list.push_back(std::move(*next++));
    }
    results.emplace_back(std::move(list));
  }
  return results;
}

[[noreturn]] void refuse_tangents(const KernelOp& op) {
  C10_THROW_ERROR(
      NotImplementedError,
      op.name +
          " has no forward-mode derivative, but an input has a tangent; give it one with "
          "register_jvp(jvp), or detach the input");
}

// As torch::autograd::check_inplace, naming operator and argument.
void refuse_leaves(const KernelOp& op, const CallTensors& tensors) {
  for (const int32_t i : op.tensor_arguments) {
    if (!op.arguments[i].mutated) continue;
    for (const at::Tensor* tensor : tensors.of(i)) {
      using torch::autograd::can_mutate_inplace_result;
      const auto result = torch::autograd::can_mutate_inplace(*tensor, /*requires_grad=*/true);
      const bool view = result == can_mutate_inplace_result::view_of_leaf;
      TORCH_CHECK(!view && result != can_mutate_inplace_result::is_leaf, op.name,
                  " writes its argument '", op.arguments[i].name, "', which is a ",
                  view ? "view of a " : "",
                  "leaf tensor that requires grad; call it under torch.no_grad(), or on a clone");
      torch::autograd::check_inplace(*tensor, /*requires_grad=*/true);
    }
  }
}

// The kernel of one operator.
class OpKernel : public c10::OperatorKernel {
 public:
  explicit OpKernel(const KernelOp& op) : op_(op) {}

 protected:
  const KernelOp& op_;
};

class AutogradKernel final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, c10::Stack* stack) {
    const c10::ArrayRef<c10::IValue> inputs = inputs_of(op_, *stack);
    const CallTensors tensors(op_, inputs);
    const auto all = tensors.all();
    if (std::any_of(all.begin(), all.end(), [](const at::Tensor* t) { return has_tangent(*t); })) {
      return call_forward_mode(keys, stack);
    }
    const bool needs_grad =
        at::GradMode::is_enabled() &&
        std::any_of(all.begin(), all.end(), [](const at::Tensor* t) { return t->requires_grad(); });
    if (!needs_grad) return redispatch(handle, keys, stack);
    const Backward* backward = op_.backward.load(std::memory_order_acquire);
    if (op_.mutates) return call_mutating(handle, keys, stack, backward, inputs, tensors);
    if (backward != nullptr && !receives_gradient(*backward, tensors)) {
      return redispatch(handle, keys, stack);
    }
    const auto node = make_node(backward, inputs, tensors);
    redispatch(handle, keys, stack);
    finish(backward, node, nullptr, *stack);
  }

 private:
  static void redispatch(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                         c10::Stack* stack) {
    const at::AutoDispatchBelowAutograd guard;
    handle.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  }

  void call_forward_mode(c10::DispatchKeySet keys, c10::Stack* stack) const {
    const c10::OperatorName* rule = op_.forward_mode.load(std::memory_order_acquire);
    if (rule == nullptr) refuse_tangents(op_);
    const auto callee = c10::Dispatcher::singleton().findSchema(*rule);
    TORCH_CHECK(callee.has_value(), op_.name, ": its forward-mode rule is not defined any more");
    callee->redispatchBoxed(keys, stack);
  }

  c10::intrusive_ptr<torch::autograd::Node> make_node(const Backward* backward,
                                                      c10::ArrayRef<c10::IValue> inputs,
                                                      const CallTensors& tensors) const {
    if (backward == nullptr) return make_missing_node(op_, tensors);
    Constants constants;
    for (const int32_t i : backward->constants) constants.push_back(inputs[i]);
    return make_backward_node(op_, *backward, tensors, std::move(constants));
  }

  // The fresh outputs on top of the stack, those of lists one after the other.
  c10::SmallVector<at::Tensor, 4> fresh_outputs(const c10::Stack& stack) const {
    c10::SmallVector<at::Tensor, 4> outputs;
    for (const c10::IValue& result : torch::jit::last(stack, op_.outputs.size())) {
      if (result.isTensor()) {
        outputs.push_back(result.toTensor());
      } else if (!result.isList()) {
        outputs.emplace_back();  // a number
      } else {
        for (const at::Tensor& tensor : result.toTensorVector()) outputs.push_back(tensor);
      }
    }
    return outputs;
  }

  void call_mutating(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, c10::Stack* stack,
                     const Backward* backward, c10::ArrayRef<c10::IValue> inputs,
                     const CallTensors& tensors) {
    refuse_leaves(op_, tensors);
    const std::vector<at::Tensor> written = written_tensors(op_, inputs);
    const std::vector<c10::IValue> kept = inputs.vec();
    const auto node = make_node(backward, inputs, tensors);
    redispatch(handle, keys, stack);
    torch::autograd::rebase_history(written, node);
    const CallTensors after(op_, kept);
    finish(backward, node, &after, *stack);
  }

  // `written`: the inputs of an operator that writes some, else null.
  void finish(const Backward* backward, const c10::intrusive_ptr<torch::autograd::Node>& node,
              const CallTensors* written, const c10::Stack& stack) const {
    const auto outputs = fresh_outputs(stack);
    set_outputs(node, backward, outputs);
    if (backward != nullptr) save_results(*backward, node, written, outputs);
  }
};

class InplaceKernel final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, c10::Stack* stack) {
    const std::vector<at::Tensor> written = written_tensors(op_, inputs_of(op_, *stack));
    {
      const at::AutoDispatchBelowADInplaceOrView guard;
      handle.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
    }
    for (const at::Tensor& tensor : written) torch::autograd::increment_version(tensor);
  }
};

at::Tensor with_memory(const at::Tensor& tensor) {
  if (!tensor._is_zerotensor()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).zero_();
}

// Gives zero tensors memory of their own strides, which kernels were chosen by: what torch makes of
// them has one element for all.
class ZeroTensorKernel final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, c10::Stack* stack) {
    for (const at::Tensor& tensor : written_tensors(op_, inputs_of(op_, *stack))) {
      TORCH_CHECK(!tensor._is_zerotensor(), op_.name,
                  " writes an argument that is a zero tensor, which has no memory; pass its "
                  ".clone()");
    }
    const size_t first = stack->size() - op_.arguments.size();
    for (const int32_t i : op_.tensor_arguments) {
      c10::IValue& value = (*stack)[first + static_cast<size_t>(i)];
      value = map_tensors(value, with_memory);
    }
    constexpr c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER,
                                        c10::DispatchKey::ZeroTensor);
    handle.redispatchBoxed(keys & below, stack);
  }
};

// Computes what is lazily conjugated or negated, and writes it back where the operator writes it:
// torch's fallback takes what is written from the results, which not every operator has.
class LazyBitsKernel final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, c10::Stack* stack) {
    std::vector<std::pair<at::Tensor, at::Tensor>> written;  // and what stands for it
    const size_t first = stack->size() - op_.arguments.size();
    for (const int32_t i : op_.tensor_arguments) {
      c10::IValue& value = (*stack)[first + static_cast<size_t>(i)];
      value = map_tensors(value, [&](const at::Tensor& tensor) {
        const at::Tensor computed = tensor.resolve_conj().resolve_neg();
        if (op_.arguments[i].mutated && !computed.is_same(tensor)) {
          written.emplace_back(tensor, computed);
        }
        return computed;
      });
    }
    constexpr c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER,
                                        c10::DispatchKey::Conjugate);
    handle.redispatchBoxed(keys & below, stack);
    for (const auto& [tensor, computed] : written) {
      tensor.copy_(computed);
      for (size_t i = stack->size() - op_.returns.size(); i < stack->size(); ++i) {
        c10::IValue& result = (*stack)[i];
        if (result.isTensor() && result.toTensor().is_same(computed)) result = tensor;
      }
    }
  }
};

class BackendKernel final : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, c10::Stack* stack) {
    CallFrame frame(op_);
    const c10::ArrayRef<c10::IValue> inputs = inputs_of(op_, *stack);
    frame.load(inputs);
    check_contract(frame);
    run_call(frame, /*copies=*/true, [] {});
    c10::Stack results = results_of(frame, inputs);
    torch::jit::drop(*stack, op_.arguments.size());
    for (c10::IValue& result : results) stack->push_back(std::move(result));
  }
};

class WithoutReturns final : public c10::OperatorKernel {
 public:
  explicit WithoutReturns(const c10::OperatorHandle& op) : op_(op) {}

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, c10::Stack* stack) {
    op_.callBoxed(stack);
    torch::jit::drop(*stack, op_.schema().returns().size());
  }

 private:
  const c10::OperatorHandle op_;
};

template <class Kernel, class Of>
c10::KernelFunction boxed(const Of& op) {
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(op));
}

}  // namespace

c10::KernelFunction kernel_without_returns(const c10::OperatorHandle& op) {
  return boxed<WithoutReturns>(op);
}

void register_kernels(KernelOp& op, bool cuda) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto put = [&](c10::DispatchKey key, c10::KernelFunction kernel) {
    op.registrations.push_back(dispatcher.registerImpl(
        op.handle.operator_name(), key, std::move(kernel), std::nullopt, nullptr, kKernelOpDebug));
  };
  op.backend_trampoline = boxed<BackendKernel>(op);
  op.autograd_trampoline = boxed<AutogradKernel>(op);
  op.inplace_trampoline = boxed<InplaceKernel>(op);
  put(c10::DispatchKey::CPU, op.backend_trampoline);
  put(c10::DispatchKey::PrivateUse1, op.backend_trampoline);
  if (cuda) put(c10::DispatchKey::CUDA, op.backend_trampoline);
  put(c10::DispatchKey::Autograd, op.autograd_trampoline);
  if (op.mutates) put(c10::DispatchKey::ADInplaceOrView, op.inplace_trampoline);
  put(c10::DispatchKey::ZeroTensor, boxed<ZeroTensorKernel>(op));
  put(c10::DispatchKey::Negative, boxed<LazyBitsKernel>(op));
  put(c10::DispatchKey::Conjugate, boxed<LazyBitsKernel>(op));
}

}  // namespace bringup::torch_ext
