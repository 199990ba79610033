// The record of a kernel operator: all that is known about it. Built once by its definition, then
// read by the fast call, the trampolines, autograd and the graph recorder.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <string>
#include <vector>

#include "torch/ops/kernel_record.h"
#include "torch/ops/rules.h"
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

struct KernelOp final : KernelRecord {
  using KernelRecord::KernelRecord;

  // Unless its kernel was overridden there.
  bool runs_on(c10::DeviceType device) const override;
  bool takes_layout(size_t argument, const at::Tensor& tensor) const override;
  std::optional<PackedCall> pack(c10::ArrayRef<c10::IValue> inputs,
                                 c10::ArrayRef<at::Tensor> outputs) const override;
  runtime::LaunchBlock pack_again(c10::ArrayRef<c10::IValue> inputs,
                                  c10::ArrayRef<at::Tensor> outputs,
                                  const PackedCall& captured) const override;
  void check_captured(c10::ArrayRef<c10::IValue> inputs, c10::ArrayRef<at::Tensor> outputs,
                      const PackedCall& captured) const override;

  std::string callable_name;  // of the callable, with its documentation
  std::string doc;
  std::vector<int32_t> tensor_arguments;  // indices of the Tensor and Tensor[] arguments
  int32_t device_argument = 0;            // the first Tensor argument that is not optional
  // By result: the written argument it is, or -1 for the next fresh output.
  std::vector<int32_t> returns;
  std::vector<OutputRule> outputs;
  std::vector<Check> checks;
  std::vector<KeyField> key_fields;  // what chooses the variant besides operator and device
  std::vector<LayoutMask> layouts;   // by argument: those it takes; 0 = contiguous ones
  Expression grid;                   // an empty program means 1
  Expression work_items;             // an empty program means unknown
  int32_t counts = 0;                // sizes of outputs that the kernel writes
  bool waits = false;                // for counts, or numbers that it returns
  int32_t generator = -1;            // the argument that it draws from; -1: none
  bool mutates = false;
  ReleaseGil release_gil = ReleaseGil::kAuto;
  int32_t max_positional = 0;

  // Equal to what the dispatcher's table holds as long as nothing has overridden it.
  c10::KernelFunction backend_trampoline;
  c10::KernelFunction autograd_trampoline;
  c10::KernelFunction inplace_trampoline;
  PyObject* overload = nullptr;  // owned: torch.ops' callable; of a closed one, what it calls

  mutable Route route;  // of the last fast call; under the GIL
  // The one variant of an operator without key_fields on the cpu, once it is known.
  mutable std::atomic<const Variant*> only_variant{nullptr};
  std::atomic<const Backward*> backward{nullptr};
  // The operator whose autograd kernel takes over where an input has a tangent.
  std::atomic<const c10::OperatorName*> forward_mode{nullptr};
};

// KernelOp::takes_layout; inline, because each call asks for each of its tensors.
inline bool takes_layout_inline(const KernelOp& op, size_t argument, const at::Tensor& tensor) {
  const LayoutMask declared = op.layouts[argument];
  if (C10_LIKELY(declared == 0)) return tensor.is_contiguous();
  Layout layout;
  return declared == kAnyLayout || layout_among(tensor, declared, layout);
}

}  // namespace bringup::torch_ext
