// The trampolines: boxed kernels through which the dispatcher runs an operator's own kernel.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include "torch/ops/record.h"

namespace bringup::torch_ext {

// Registers what runs the kernel (backend keys; CUDA where it can run for tensors of torch's CUDA
// backend), takes care of gradients (Autograd), of version counters (ADInplaceOrView), of tensors
// without memory (ZeroTensor). Kernels of one kind are equal under _equalsBoxedAndUnboxed, whatever
// their operator.
void register_kernels(KernelOp& op, bool cuda);
// Calls `op`, of any library, and drops what it returns: the one kernel of an operator with the
// same arguments and no returns.
c10::KernelFunction kernel_without_returns(const c10::OperatorHandle& op);

}  // namespace bringup::torch_ext
