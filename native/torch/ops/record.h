// The record of a kernel operator: all that is known about it. Built once by its definition, then
// read by the fast call, the trampolines, autograd and the graph recorder.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "torch/ops/kernel_op.h"
#include "torch/ops/rules.h"
#include "torch/ops/schema.h"
#include "torch/ops/variant.h"

namespace bringup::torch_ext {

class CallFrame;
struct Backward;  // autograd.h

// Whether the fast call lets other Python threads in while the kernel runs; kAuto: where the work
// is worth it. torch.ops always does.
enum class ReleaseGil : uint8_t { kAuto = 0, kAlways = 1, kNever = 2 };

// The places in the dispatcher's table that a call with these keys comes through; null: not through
// one of that kind. They stay where they are as long as the operator lives; what stands in them is
// compared at every call.
struct Route {
  c10::DispatchKeySet keys;
  const c10::KernelFunction* autograd = nullptr;
  const c10::KernelFunction* inplace = nullptr;
  const c10::KernelFunction* backend = nullptr;
};

struct KernelOp {
  explicit KernelOp(c10::OperatorHandle op);
  KernelOp(const KernelOp&) = delete;
  KernelOp& operator=(const KernelOp&) = delete;

  std::string name;           // with the overload's name, where it has one
  std::string callable_name;  // of the callable, with its documentation
  std::string doc;
  std::vector<Argument> arguments;
  std::vector<int32_t> tensor_arguments;  // indices of the Tensor and Tensor[] arguments
  int32_t device_argument = 0;            // the first Tensor argument that is not optional
  // By result: the written argument it is, or -1 for the next fresh output.
  std::vector<int32_t> returns;
  std::vector<OutputRule> outputs;
  std::vector<Check> checks;
  uint32_t number;                   // in keys; never given twice
  std::vector<KeyField> key_fields;  // what chooses the variant besides operator and device
  std::vector<LayoutMask> layouts;   // by argument: those it takes; 0 = contiguous ones
  Expression grid;                   // an empty program means 1
  int32_t counts = 0;                // sizes of outputs that the kernel writes
  bool device_code = false;
  bool mutates = false;
  ReleaseGil release_gil = ReleaseGil::kAuto;
  int32_t max_positional = 0;

  c10::OperatorHandle handle;
  const c10::impl::OperatorEntry& entry;
  // Of the operator that runs this one and returns nothing, where there is one.
  const c10::impl::OperatorEntry* without_returns = nullptr;
  // Equal to what the dispatcher's table holds as long as nothing has overridden it.
  c10::KernelFunction backend_trampoline;
  c10::KernelFunction autograd_trampoline;
  c10::KernelFunction inplace_trampoline;
  PyObject* overload = nullptr;  // owned: torch.ops' callable; of a closed one, what it calls
  PyObject* compile = nullptr;   // owned: (device type, values of key_fields) -> kernel id

  mutable std::atomic<int64_t> variant_count{0};
  mutable Route route;  // of the last fast call; under the GIL
  // The one variant of an operator without key_fields on the cpu, once it is known.
  mutable std::atomic<const Variant*> only_variant{nullptr};
  std::atomic<const Backward*> backward{nullptr};
  // The operator whose autograd kernel takes over where an input has a tangent.
  std::atomic<const c10::OperatorName*> forward_mode{nullptr};
  std::atomic<bool> closed{false};
  std::vector<c10::RegistrationHandleRAII> registrations;
};

// Puts a finished record under its operator, where find_kernel_op finds it. The record lives until
// the process ends.
KernelOp& publish(std::unique_ptr<KernelOp> op);
// Lets find_kernel_op find `op` under another operator too, which runs it and returns nothing.
void publish_without_returns(KernelOp& op, const c10::OperatorHandle& other);
// Takes the operator's kernels out of the dispatcher; its callable calls `overload` from now on.
void close(KernelOp& op);

// The next number of an operator.
uint32_t next_operator_number();

// takes_layout of kernel_op.h; inline, because each call asks for each of its tensors.
inline bool takes_layout_inline(const KernelOp& op, size_t argument, const at::Tensor& tensor) {
  const LayoutMask declared = op.layouts[argument];
  if (C10_LIKELY(declared == 0)) return tensor.is_contiguous();
  Layout layout;
  return declared == kAnyLayout || layout_among(tensor, declared, layout);
}

// Looks at the inputs. Raises ContractError when the frame breaks the input contract: devices,
// checks, layout.
void check_contract(CallFrame& frame);
// Allocates the fresh outputs by their rules, and the counts.
void allocate_outputs(CallFrame& frame);
// Once the kernel was started: waits for its counts, and cuts the outputs to them. Raises
// KernelError for counts that cannot be. Nothing where an operator has none.
void settle_counts(CallFrame& frame);
// Blocks of the declared grid, at least 1.
int64_t grid_of(const CallFrame& frame);
// Raises KernelError with the kernel's reason when it says that it cannot run a described frame.
void check_can_implement(CallFrame& frame, const runtime::Kernel& kernel, const bringup_ctx* ctx);
// Runs the kernel on a frame with outputs: called on cpu, given to the driver elsewhere. Raises
// KernelError.
void run_kernel(CallFrame& frame, const Variant& variant);

}  // namespace bringup::torch_ext
