// The fallback, for kernels that do part of an operator's cases themselves.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace bringup::torch_ext {

// Runs the operator's CPU kernel on what is on the stack, as for an operator without a kernel on
// the device: policy and report of the fallback hold.
void fall_back(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Takes the fallback's own registration for an operator out of the dispatcher, so that a kernel can
// be registered in its place without overriding it, and puts it back. Nothing for an operator that
// the fallback has no registration for (it is reached as the backend's fallback then), nor for one
// that other code has given a kernel.
void withdraw_fallback(const c10::OperatorName& op);
void restore_fallback(const c10::OperatorName& op);
// Registers the fallback's entries for operators that had another library's kernel until now.
void restore_fallbacks();

// Whether the fallback of this operator is torch's composite kernel, because other code gave the
// device a kernel for its out form.
bool hands_to_out_form(const c10::OperatorHandle& op);

}  // namespace bringup::torch_ext
