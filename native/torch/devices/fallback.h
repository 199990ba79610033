// The fallback, for kernels that do part of an operator's cases themselves.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace bringup::torch_ext {

// Runs the operator's CPU kernel on what is on the stack, as for an operator without a kernel on
// the device: policy and report of the fallback hold.
void fall_back(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace bringup::torch_ext
