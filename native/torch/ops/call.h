// The steps of a call of a kernel operator, and their order. Fast and boxed calls come through
// run_call; a captured one takes the same steps but the copies, which are nodes of their own, and
// the launch (KernelOp::pack). Kernels of devices.kernel have the same order in prepare_launch.
#pragma once

#include "torch/ops/frame.h"
#include "torch/ops/record.h"

namespace bringup::torch_ext {

// Looks at the inputs. Raises ContractError when the frame breaks the input contract: devices,
// checks, layout.
void check_contract(CallFrame& frame);
// Allocates the fresh outputs by their rules, and the counts.
void allocate_outputs(CallFrame& frame);
// Runs the kernel on a frame with outputs: called on cpu, given to the driver elsewhere. Raises
// KernelError.
void run_kernel(CallFrame& frame, const Variant& variant);
// Once the kernel was started: waits for its counts and cuts the outputs to them, and for numbers
// that are returned. Raises KernelError for counts that cannot be. Nothing where there are none.
void settle(CallFrame& frame);
// The number that a settled output is.
at::Scalar number_in(const at::Tensor& output);

// A call whose contract was checked. `copies`: not every input is laid out as the kernel takes it.
// `allocated` is called before the kernel is.
template <class Allocated>
void run_call(CallFrame& frame, bool copies, Allocated&& allocated) {
  if (C10_UNLIKELY(copies)) frame.copy_refused_layouts();
  const Variant& variant = variant_for(frame.op(), frame);
  allocate_outputs(frame);
  allocated();
  run_kernel(frame, variant);
  settle(frame);
}

}  // namespace bringup::torch_ext
