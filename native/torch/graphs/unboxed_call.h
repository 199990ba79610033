// A call of an operator that writes into given tensors, without the dispatcher's stack.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <memory>

namespace bringup::torch_ext::graphs {

// The call's arguments are fixed. The kernel is looked up at each call, so that one that was
// registered in between is the one that runs.
class UnboxedCall {
 public:
  virtual ~UnboxedCall() = default;
  virtual void run(c10::DispatchKeySet keys) = 0;

  // Null for an operator with another signature than those that it knows. `args`: what the operator
  // takes, in schema order, and `output` where it writes.
  static std::unique_ptr<UnboxedCall> make(const c10::OperatorHandle& op,
                                           c10::ArrayRef<c10::IValue> args,
                                           const at::Tensor& output);
};

}  // namespace bringup::torch_ext::graphs
