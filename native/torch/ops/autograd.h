// Gradients of kernel operators: the node whose backward is another operator, the node that
// refuses, and forward AD's refusal. Shared by the fast call and the boxed autograd kernel.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/function.h>

#include <string>
#include <vector>

#include "torch/ops/record.h"

namespace bringup::torch_ext {

// Where one argument of the backward operator comes from.
struct BackwardSource {
  enum class Kind : uint8_t { kGrad, kInput, kOutput, kConstant };
  Kind kind;
  int32_t
      index;  // an output (kGrad, kOutput) or an input (kInput, kConstant) of the forward operator
};

struct Backward {
  c10::OperatorName op;
  std::vector<BackwardSource> sources;  // by argument of `op`
  std::vector<int32_t> saved_inputs;    // in the order of the kInput sources
  std::vector<int32_t> saved_outputs;   // in the order of the kOutput sources
  std::vector<int32_t> constants;       // in the order of the kConstant sources
  std::vector<int32_t>
      gradient_receivers;  // by return of `op`: the input that it is the gradient of
};

using Constants = c10::SmallVector<c10::IValue, 4>;

// The node for one call: `tensors` by input index (null for None and for everything that is not one
// tensor), the constants in the order of `backward.constants`.
c10::intrusive_ptr<torch::autograd::Node> make_backward_node(const KernelOp& op,
                                                             const Backward& backward,
                                                             const at::Tensor* const* tensors,
                                                             Constants constants);
// The node of an operator without a backward: raises when a gradient is asked for.
c10::intrusive_ptr<torch::autograd::Node> make_missing_node(
    const KernelOp& op, c10::ArrayRef<const at::Tensor*> tensors);
// Makes all fresh outputs the node's. Those of a dtype without gradients stay as they are.
void set_outputs(const c10::intrusive_ptr<torch::autograd::Node>& node,
                 c10::ArrayRef<at::Tensor> outputs);
// Lets a backward node keep the outputs that its operator reads; after set_outputs.
void save_outputs(const Backward& backward, const c10::intrusive_ptr<torch::autograd::Node>& node,
                  c10::ArrayRef<at::Tensor> outputs);

// Whether an input that has a gradient in `backward` requires one. `tensors` as above.
bool receives_gradient(const Backward& backward, const at::Tensor* const* tensors);
// Whether forward-mode AD would have to go through this tensor.
bool has_tangent(const at::Tensor& tensor);

}  // namespace bringup::torch_ext
