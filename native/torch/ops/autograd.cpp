#include "torch/ops/autograd.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <mutex>

#include "torch/ops/frame.h"

namespace bringup::torch_ext {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

bool is_list(const KernelOp& op, int32_t argument) {
  return op.arguments[argument].kind != ArgumentKind::kTensor;
}

const at::Tensor kUndefined;  // stands for None in a list

// The tensors of an argument that were saved, of a list or alone.
struct SavedArgument {
  bool list;
  bool optional;   // of a list: some of its tensors are undefined
  bool is_result;  // written by the operator, and saved after that
  c10::SmallVector<SavedVariable, 1> tensors;
};

// The node of one call. Calls the backward operator through the dispatcher, so its own kernel,
// fake, autograd and override apply, and no Python runs.
class OperatorBackward final : public Node {
 public:
  OperatorBackward(const KernelOp& op, const Backward& backward, Constants constants)
      : op_(op), backward_(backward), constants_(std::move(constants)) {}

  void receive(const CallTensors& tensors) {
    torch::autograd::edge_list edges;
    edges.reserve(backward_.gradient_receivers.size());
    for (const int32_t i : backward_.gradient_receivers) {
      const auto given = tensors.of(i);
      for (const at::Tensor* tensor : given) {
        edges.push_back(torch::autograd::impl::gradient_edge(*tensor));
      }
      if (given.empty() && !is_list(op_, i)) edges.emplace_back();
      receiver_sizes_.push_back(is_list(op_, i) ? static_cast<int32_t>(given.size()) : kSingle);
    }
    set_next_edges(std::move(edges));
  }

  void save_inputs(const CallTensors& tensors) {
    for (const int32_t i : backward_.saved_inputs) {
      SavedArgument& saved = inputs_.emplace_back();
      saved.list = is_list(op_, i);
      saved.optional = op_.arguments[i].kind == ArgumentKind::kOptionalTensorList;
      saved.is_result = op_.arguments[i].mutated;
      if (saved.is_result) continue;  // save_written
      for (const at::Tensor* tensor : tensors.of(i)) {
        saved.tensors.emplace_back(*tensor, /*is_output=*/false);
      }
    }
  }

  void save_written(const CallTensors& tensors) {
    for (size_t k = 0; k < inputs_.size(); ++k) {
      if (!inputs_[k].is_result) continue;
      for (const at::Tensor* tensor : tensors.of(backward_.saved_inputs[k])) {
        inputs_[k].tensors.emplace_back(*tensor, /*is_output=*/true,
                                        /*is_inplace_on_view=*/tensor->is_view());
      }
    }
  }

  void save_output(const at::Tensor& tensor) { outputs_.emplace_back(tensor, /*is_output=*/true); }

  std::string name() const override { return op_.name + "Backward"; }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (SavedArgument& argument : inputs_) {
      for (SavedVariable& saved : argument.tensors) saved.reset_data();
    }
    for (SavedVariable& saved : outputs_) saved.reset_data();
  }

 protected:
  variable_list apply(variable_list&& grads) override {
    const auto callee = c10::Dispatcher::singleton().findSchema(backward_.op);
    TORCH_CHECK(callee.has_value(), op_.name, ": its backward operator ", toString(backward_.op),
                " is not defined any more");
    c10::Stack stack = collect(grads);
    callee->callBoxed(stack);
    return distribute(stack);
  }

 private:
  static constexpr int32_t kSingle = -1;

  c10::Stack collect(const variable_list& grads) {
    std::lock_guard<std::mutex> lock(mutex_);
    c10::Stack stack;
    stack.reserve(backward_.sources.size());
    auto input = inputs_.begin();
    auto output = outputs_.begin();
    auto constant = constants_.begin();
    for (const BackwardSource& source : backward_.sources) {
      switch (source.kind) {
        case SourceKind::kGrad:
          stack.push_back(gradient(grads, source));
          break;
        case SourceKind::kInput:
          stack.push_back(unpack(*input++));
          break;
        case SourceKind::kOutput:
          stack.emplace_back((output++)->unpack(getptr()));
          break;
        case SourceKind::kConstant:
          stack.push_back(*constant++);
          break;
        case SourceKind::kMask:
          stack.emplace_back(mask());
          break;
      }
    }
    return stack;
  }

  c10::IValue gradient(const variable_list& grads, const BackwardSource& source) {
    const at::Tensor& grad = grads[source.index];
    if (grad.defined()) return grad;
    if (source.optional) return {};
    return input_metadata(source.index).zeros_like();
  }

  c10::IValue unpack(SavedArgument& saved) {
    const auto owner = saved.is_result ? getptr() : nullptr;
    if (!saved.list) {
      if (saved.tensors.empty()) return {};
      return saved.tensors.front().unpack(owner);
    }
    c10::List<at::Tensor> list;
    c10::List<std::optional<at::Tensor>> optional;
    for (SavedVariable& tensor : saved.tensors) {
      at::Tensor unpacked = tensor.unpack(owner);
      if (saved.optional) {
        optional.push_back(unpacked.defined() ? std::optional(unpacked) : std::nullopt);
      } else {
        list.push_back(std::move(unpacked));
      }
    }
    return saved.optional ? c10::IValue(std::move(optional)) : c10::IValue(std::move(list));
  }

  // By receiver, whether its gradient is wanted; of a list, that of any of its tensors.
  c10::List<bool> mask() const {
    c10::List<bool> mask;
    size_t edge = 0;
    for (const int32_t size : receiver_sizes_) {
      bool wanted = false;
      for (int32_t k = 0; k < (size == kSingle ? 1 : size); ++k) {
        wanted |= task_should_compute_output(edge++);
      }
      mask.push_back(wanted);
    }
    return mask;
  }

  // What the backward operator returned, as one gradient for each edge. What the mask made it
  // leave out is no gradient, whatever it returned for it.
  variable_list distribute(c10::Stack& results) const {
    variable_list gradients;
    for (size_t k = 0; k < receiver_sizes_.size(); ++k) {
      c10::IValue& result = results[k];
      if (receiver_sizes_[k] == kSingle) {
        gradients.push_back(result.isNone() ? at::Tensor() : std::move(result).toTensor());
      } else {
        append_list(std::move(result).toTensorVector(), k, gradients);
      }
    }
    for (size_t edge = 0; backward_.masked && edge < gradients.size(); ++edge) {
      if (!task_should_compute_output(edge)) gradients[edge].reset();
    }
    return gradients;
  }

  void append_list(std::vector<at::Tensor> list, size_t receiver, variable_list& gradients) const {
    const int32_t argument = backward_.gradient_receivers[receiver];
    TORCH_CHECK(static_cast<int32_t>(list.size()) == receiver_sizes_[receiver],
                toString(backward_.op), " returned ", list.size(), " gradients for the list '",
                op_.arguments[argument].name, "' of ", op_.name, ", expected ",
                receiver_sizes_[receiver]);
    for (at::Tensor& gradient : list) gradients.push_back(std::move(gradient));
  }

  const KernelOp& op_;
  const Backward& backward_;
  std::mutex mutex_;
  c10::SmallVector<SavedArgument, 3> inputs_;
  c10::SmallVector<SavedVariable, 1> outputs_;
  c10::SmallVector<int32_t, 4> receiver_sizes_;  // of lists, else kSingle
  Constants constants_;
};

// Stands where a gradient would be needed and none is defined: the forward call is fine, backward
// is an error and not a gradient silently lost. src/bringup/ops/registration/autograd.py says the
// same.
class MissingBackward final : public Node {
 public:
  MissingBackward(const KernelOp& op, torch::autograd::edge_list&& next_edges)
      : Node(std::move(next_edges)), op_(op) {}
  std::string name() const override { return op_.name + "MissingBackward"; }

 protected:
  variable_list apply(variable_list&&) override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, op_.name, " has no backward, but a gradient through it was asked for; ",
        op_.mutates ? "it writes its arguments: call it on detached tensors, or on clones under "
                      "torch.no_grad()"
                    : "give it one with register_autograd(), or call it under torch.no_grad()");
  }

 private:
  const KernelOp& op_;
};

}  // namespace

CallTensors::CallTensors(const CallFrame& frame) {
  for (const int32_t i : frame.op().tensor_arguments) {
    begin_[i] = static_cast<int32_t>(all_.size());
    if (frame.op().arguments[i].kind == ArgumentKind::kOptionalTensorList && !frame.is_none(i)) {
      for (int64_t k = 0; k < frame.list_size(i); ++k) {
        const at::Tensor* tensor = frame.element(i, k);
        all_.push_back(tensor == nullptr ? &kUndefined : tensor);
      }
    } else {
      frame.for_each_tensor(i, [this](int, const at::Tensor& tensor) { all_.push_back(&tensor); });
    }
    count_[i] = static_cast<int32_t>(all_.size()) - begin_[i];
  }
}

CallTensors::CallTensors(const KernelOp& op, c10::ArrayRef<c10::IValue> inputs) {
  for (const int32_t i : op.tensor_arguments) {
    begin_[i] = static_cast<int32_t>(all_.size());
    if (inputs[i].isTensor()) {
      const at::Tensor& tensor = inputs[i].toTensor();
      if (tensor.defined()) all_.push_back(&tensor);
    } else if (inputs[i].isList()) {
      for (const c10::IValue& item : inputs[i].toListRef()) {
        all_.push_back(item.isTensor() ? &item.toTensor() : &kUndefined);
      }
    }
    count_[i] = static_cast<int32_t>(all_.size()) - begin_[i];
  }
}

c10::intrusive_ptr<Node> make_backward_node(const KernelOp& op, const Backward& backward,
                                            const CallTensors& tensors, Constants constants) {
  auto node = c10::make_intrusive<OperatorBackward>(op, backward, std::move(constants));
  node->receive(tensors);
  node->save_inputs(tensors);
  return node;
}

c10::intrusive_ptr<Node> make_missing_node(const KernelOp& op, const CallTensors& tensors) {
  torch::autograd::edge_list edges;
  for (const at::Tensor* tensor : tensors.all()) {
    if (tensor->requires_grad()) edges.push_back(torch::autograd::impl::gradient_edge(*tensor));
  }
  return c10::make_intrusive<MissingBackward>(op, std::move(edges));
}

void set_outputs(const c10::intrusive_ptr<Node>& node, const Backward* backward,
                 c10::ArrayRef<at::Tensor> outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool differentiable = outputs[i].defined() &&
                                torch::autograd::isDifferentiableType(outputs[i].scalar_type()) &&
                                (backward == nullptr || backward->differentiable[i]);
    torch::autograd::set_history(differentiable ? outputs[i] : at::Tensor(), node);
  }
}

void save_results(const Backward& backward, const c10::intrusive_ptr<Node>& node,
                  const CallTensors* inputs, c10::ArrayRef<at::Tensor> outputs) {
  auto& saving = static_cast<OperatorBackward&>(*node);
  if (inputs != nullptr) saving.save_written(*inputs);
  for (const int32_t i : backward.saved_outputs) saving.save_output(outputs[i]);
}

bool receives_gradient(const Backward& backward, const CallTensors& tensors) {
  const auto& receivers = backward.gradient_receivers;
  return std::any_of(receivers.begin(), receivers.end(), [&tensors](int32_t i) {
    const auto given = tensors.of(i);
    return std::any_of(given.begin(), given.end(),
                       [](const at::Tensor* tensor) { return tensor->requires_grad(); });
  });
}

bool has_tangent(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->autograd_meta() != nullptr &&
         c10::AutogradState::get_tls_state().get_fw_grad_mode() &&
         tensor._fw_grad(/*level=*/0).defined();
}

}  // namespace bringup::torch_ext
