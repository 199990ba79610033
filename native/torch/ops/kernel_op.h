// What the rest of native/torch may know about a kernel operator: which dispatcher operator it is,
// which kernel runs for given inputs, and how its launch block is packed. The graph recorder builds
// kernel nodes from this.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <memory>

#include "runtime/kernel_table.h"
#include "runtime/launch_block.h"

namespace bringup::torch_ext {

struct KernelOp;  // owned by the operator registry, lives until the process ends

// The kernel operator behind a dispatcher operator, or null when it is somebody else's. Lock-free.
const KernelOp* find_kernel_op(const c10::OperatorHandle& op);

// Whether input number `argument` is passed to the kernel as it lies in memory; otherwise it is
// passed as a contiguous copy.
bool takes_layout(const KernelOp& op, size_t argument, const at::Tensor& tensor);

// The kernel that runs for these inputs (schema order) on their device; compiled now if this is its
// first use.
std::shared_ptr<const runtime::Kernel> kernel_for(const KernelOp& op,
                                                  c10::ArrayRef<c10::IValue> inputs);

// Blocks on a grid for device code, 1 for a host entry.
int64_t grid_for(const KernelOp& op, c10::ArrayRef<c10::IValue> inputs);

// The launch block of running `op` on `inputs` into `outputs` (already allocated, schema order).
// Input number i is argument i of the block. Tensor addresses are taken as they are now.
runtime::LaunchBlock pack_launch_block(const KernelOp& op, c10::ArrayRef<c10::IValue> inputs,
                                       c10::ArrayRef<at::Tensor> outputs);

// Raises ContractError when a call with these inputs breaks the input contract, or would run
// another kernel, give fresh outputs of other shapes or start another number of blocks: a captured
// call cannot follow there.
void check_captured_call(const KernelOp& op, c10::ArrayRef<c10::IValue> inputs,
                         c10::ArrayRef<at::Tensor> outputs, int64_t grid,
                         const runtime::Kernel& kernel);

}  // namespace bringup::torch_ext
