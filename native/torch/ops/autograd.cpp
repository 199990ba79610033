#include "torch/ops/autograd.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <mutex>

namespace bringup::torch_ext {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// The node of one call. Calls the backward operator through the dispatcher, so its own kernel,
// fake, autograd and override apply, and no Python runs.
class OperatorBackward final : public Node {
 public:
  OperatorBackward(const KernelOp& op, const Backward& backward, Constants constants)
      : op_(op), backward_(backward), constants_(std::move(constants)) {}

  void save_input(const at::Tensor* tensor) {
    inputs_.emplace_back(tensor != nullptr ? *tensor : at::Tensor(), /*is_output=*/false);
  }
  void save_output(const at::Tensor& tensor) { outputs_.emplace_back(tensor, /*is_output=*/true); }

  std::string name() const override { return op_.name + "Backward"; }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable& saved : inputs_) saved.reset_data();
    for (SavedVariable& saved : outputs_) saved.reset_data();
  }

 protected:
  variable_list apply(variable_list&& grads) override {
    const auto callee = c10::Dispatcher::singleton().findSchema(backward_.op);
    TORCH_CHECK(callee.has_value(), op_.name, ": its backward operator ", toString(backward_.op),
                " is not defined any more");
    c10::Stack stack = collect(grads);
    callee->callBoxed(stack);
    variable_list result;
    result.reserve(stack.size());
    for (c10::IValue& value : stack) result.push_back(std::move(value).toTensor());
    return result;
  }

 private:
  c10::Stack collect(const variable_list& grads) {
    std::lock_guard<std::mutex> lock(mutex_);
    c10::Stack stack;
    stack.reserve(backward_.sources.size());
    auto input = inputs_.begin();
    auto output = outputs_.begin();
    auto constant = constants_.begin();
    for (const BackwardSource& source : backward_.sources) {
      switch (source.kind) {
        case BackwardSource::Kind::kGrad: {
          const at::Tensor& grad = grads[source.index];
          stack.emplace_back(grad.defined() ? grad : input_metadata(source.index).zeros_like());
          break;
        }
        case BackwardSource::Kind::kInput:
          push_saved(stack, (input++)->unpack());
          break;
        case BackwardSource::Kind::kOutput:
          push_saved(stack, (output++)->unpack(getptr()));
          break;
        case BackwardSource::Kind::kConstant:
          stack.push_back(*constant++);
          break;
      }
    }
    return stack;
  }

  // A saved None comes back as an undefined tensor.
  static void push_saved(c10::Stack& stack, at::Tensor tensor) {
    stack.push_back(tensor.defined() ? c10::IValue(std::move(tensor)) : c10::IValue());
  }

  const KernelOp& op_;
  const Backward& backward_;
  std::mutex mutex_;
  c10::SmallVector<SavedVariable, 3> inputs_;
  c10::SmallVector<SavedVariable, 1> outputs_;
  Constants constants_;
};

// Stands where a gradient would be needed and none is defined: the forward call is fine, backward
// is an error and not a gradient silently lost.
class MissingBackward final : public Node {
 public:
  MissingBackward(const KernelOp& op, torch::autograd::edge_list&& next_edges)
      : Node(std::move(next_edges)), op_(op) {}
  std::string name() const override { return op_.name + "MissingBackward"; }

 protected:
  variable_list apply(variable_list&&) override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, op_.name, " has no backward, but a gradient through it was asked for. ",
        op_.mutates
            ? "It writes into its arguments, so none can be registered: detach() them first."
            : "Register one with register_backward(), or call the operator under torch.no_grad().");
  }

 private:
  const KernelOp& op_;
};

}  // namespace

c10::intrusive_ptr<Node> make_backward_node(const KernelOp& op, const Backward& backward,
                                            const at::Tensor* const* tensors, Constants constants) {
  auto node = c10::make_intrusive<OperatorBackward>(op, backward, std::move(constants));
  torch::autograd::edge_list edges;
  edges.reserve(backward.gradient_receivers.size());
  for (const int32_t i : backward.gradient_receivers) {
    edges.push_back(tensors[i] != nullptr ? torch::autograd::impl::gradient_edge(*tensors[i])
                                          : torch::autograd::Edge());
  }
  node->set_next_edges(std::move(edges));
  for (const int32_t i : backward.saved_inputs) node->save_input(tensors[i]);
  return node;
}

c10::intrusive_ptr<Node> make_missing_node(const KernelOp& op,
                                           c10::ArrayRef<const at::Tensor*> tensors) {
  torch::autograd::edge_list edges;
  for (const at::Tensor* tensor : tensors) {
    if (tensor->requires_grad()) edges.push_back(torch::autograd::impl::gradient_edge(*tensor));
  }
  return c10::make_intrusive<MissingBackward>(op, std::move(edges));
}

void set_outputs(const c10::intrusive_ptr<Node>& node, c10::ArrayRef<at::Tensor> outputs) {
  for (const at::Tensor& output : outputs) {
    const bool differentiable = torch::autograd::isDifferentiableType(output.scalar_type());
    torch::autograd::set_history(differentiable ? output : at::Tensor(), node);
  }
}

void save_outputs(const Backward& backward, const c10::intrusive_ptr<Node>& node,
                  c10::ArrayRef<at::Tensor> outputs) {
  for (const int32_t i : backward.saved_outputs) {
    static_cast<OperatorBackward&>(*node).save_output(outputs[i]);
  }
}

bool receives_gradient(const Backward& backward, const at::Tensor* const* tensors) {
  const auto& receivers = backward.gradient_receivers;
  return std::any_of(receivers.begin(), receivers.end(), [tensors](int32_t i) {
    return tensors[i] != nullptr && tensors[i]->requires_grad();
  });
}

bool has_tangent(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->autograd_meta() != nullptr &&
         c10::AutogradState::get_tls_state().get_fw_grad_mode() &&
         tensor._fw_grad(/*level=*/0).defined();
}

}  // namespace bringup::torch_ext
