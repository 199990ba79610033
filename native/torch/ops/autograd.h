// Gradients of kernel operators: the node whose backward is another operator, the node that
// refuses, and what leads to them. Shared by the fast call and the boxed autograd kernel.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/function.h>

#include <vector>

#include "runtime/contract.h"
#include "torch/ops/record.h"

namespace bringup::torch_ext {

using runtime::SourceKind;

// Where one argument of the backward operator comes from.
struct BackwardSource {
  SourceKind kind;
  // A result (kGrad), an output (kOutput) or an input (kInput, kConstant) of the forward operator.
  // Its results are the tensors that it writes, then its fresh outputs.
  int32_t index;
  bool optional;  // kGrad: an undefined gradient is None, not zeros
};

struct Backward {
  c10::OperatorName op;
  std::vector<BackwardSource> sources;  // by argument of `op`
  std::vector<int32_t> saved_inputs;    // in the order of the kInput sources
  std::vector<int32_t> saved_outputs;   // in the order of the kOutput sources
  std::vector<int32_t> constants;       // in the order of the kConstant sources
  // By return of `op`: the input that it is the gradient of, a Tensor or a Tensor[].
  std::vector<int32_t> gradient_receivers;
  std::vector<bool> differentiable;  // by fresh output, lists taken apart
  bool masked = false;               // a source is a kMask
};

using Constants = c10::SmallVector<c10::IValue, 4>;

// The tensors among the inputs of a call, by argument. Scalars are not touched: they may be
// symbolic. What it was made of has to outlive it.
class CallTensors {
 public:
  explicit CallTensors(const CallFrame& frame);
  CallTensors(const KernelOp& op, c10::ArrayRef<c10::IValue> inputs);

  // Those of a Tensor or Tensor[] argument; none for None.
  c10::ArrayRef<const at::Tensor*> of(int32_t argument) const {
    return {all_.data() + begin_[argument], static_cast<size_t>(count_[argument])};
  }
  c10::ArrayRef<const at::Tensor*> all() const { return all_; }

 private:
  int32_t begin_[kMaxArguments];
  int32_t count_[kMaxArguments];
  c10::SmallVector<const at::Tensor*, 8> all_;
};

// The node for one call, the constants in the order of `backward.constants`.
c10::intrusive_ptr<torch::autograd::Node> make_backward_node(const KernelOp& op,
                                                             const Backward& backward,
                                                             const CallTensors& tensors,
                                                             Constants constants);
// The node of an operator without a backward: raises when a gradient is asked for.
c10::intrusive_ptr<torch::autograd::Node> make_missing_node(const KernelOp& op,
                                                            const CallTensors& tensors);
// Makes all fresh outputs the node's, save those that cannot have a gradient or, by `backward`,
// have none.
void set_outputs(const c10::intrusive_ptr<torch::autograd::Node>& node, const Backward* backward,
                 c10::ArrayRef<at::Tensor> outputs);
// Lets a backward node keep what its operator reads of the results: outputs, and written arguments
// as they are now. After set_outputs, and after the history of written tensors was rebased.
// `inputs` is null for an operator that writes none of them.
void save_results(const Backward& backward, const c10::intrusive_ptr<torch::autograd::Node>& node,
                  const CallTensors* inputs, c10::ArrayRef<at::Tensor> outputs);

// Whether an input that has a gradient in `backward` requires one.
bool receives_gradient(const Backward& backward, const CallTensors& tensors);
// Whether forward-mode AD would have to go through this tensor.
bool has_tangent(const at::Tensor& tensor);

}  // namespace bringup::torch_ext
