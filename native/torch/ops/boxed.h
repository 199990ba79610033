// The trampolines: boxed kernels through which the dispatcher runs an operator's own kernel.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include "torch/ops/record.h"

namespace bringup::torch_ext {

// Runs the kernel (backend keys), takes care of gradients (Autograd), of version counters
// (ADInplaceOrView), of tensors without memory (ZeroTensor). Kernels of one kind are equal under
// _equalsBoxedAndUnboxed, whatever their operator.
c10::KernelFunction backend_kernel(const KernelOp& op);
c10::KernelFunction autograd_kernel(const KernelOp& op);
c10::KernelFunction inplace_kernel(const KernelOp& op);
c10::KernelFunction zero_tensor_kernel(const KernelOp& op);
c10::KernelFunction lazy_bits_kernel(const KernelOp& op);
// Calls `op`, of any library, and drops what it returns: the one kernel of an operator with the
// same arguments and no returns.
c10::KernelFunction kernel_without_returns(const c10::OperatorHandle& op);

}  // namespace bringup::torch_ext
