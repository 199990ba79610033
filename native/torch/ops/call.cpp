#include "torch/ops/call.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/full.h>
#include <c10/core/InferenceMode.h>

#include "runtime/context.h"
#include "torch/common/errors.h"
#include "torch/common/kernel_call.h"
#include "torch/devices/driver.h"

namespace bringup::torch_ext {
namespace {

[[noreturn]] void raise_device_mismatch(const CallFrame& frame) {
  std::string devices;
  frame.for_each_tensor([&](int i, const at::Tensor& tensor) {
    if (!devices.empty()) devices += ", ";
    devices += frame.op().arguments[i].name + ": " + tensor.device().str();
  });
  raise_error(ErrorClass::kContract, frame.op().name, ": all tensors must be on one device, got ",
              devices, "; move them with .to()");
}

void check_devices(const CallFrame& frame) {
  const DLDevice device = dlpack_device(frame.device());
  for (const int32_t i : frame.op().tensor_arguments) {
    frame.for_each_descriptor(i, [&](const DLTensor& tensor) {
      if (C10_LIKELY(tensor.device.device_type == device.device_type &&
                     tensor.device.device_id == device.device_id)) {
        return;
      }
      raise_device_mismatch(frame);
    });
  }
}

// Two elements of a written tensor in one place: the result would depend on the order of writing.
void check_written(const CallFrame& frame, const std::string& name, const at::Tensor& tensor) {
  if (tensor.is_inference() && !c10::InferenceMode::is_enabled()) {
    raise_error(ErrorClass::kContract, frame.op().name, ": ", name,
                " is an inference tensor and cannot be written outside "
                "torch.inference_mode(); pass a .clone()");
  }
  if (!tensor.is_contiguous() && at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    raise_error(ErrorClass::kContract, frame.op().name, ": ", name,
                " is written, but several of its elements share memory "
                "(strides ",
                sizes_text(tensor.strides()), "); pass a .clone()");
  }
}

// As torch's own operators do (at::assert_no_partial_overlap): a written tensor may be an input as
// a whole, x + x into x, but not in part. Nor may two results go to one place. What is neither
// dense nor contiguous is not checked.
void check_overlap(const CallFrame& frame, int written, const at::Tensor& tensor) {
  const auto storage_of = [](const at::Tensor& any) {
    return any.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  };
  const auto& arguments = frame.op().arguments;
  frame.for_each_tensor([&](int i, const at::Tensor& other) {
    const bool itself = i == written && &other == &tensor;
    if (itself || storage_of(other) != storage_of(tensor)) return;
    const at::MemOverlapStatus status = at::get_overlap_status(tensor, other);
    const bool both_written = status == at::MemOverlapStatus::Full && arguments[i].mutated;
    if (status != at::MemOverlapStatus::Partial && !both_written) return;
    raise_error(ErrorClass::kContract, frame.op().name, ": ", arguments[written].name,
                " is written, but shares ", (both_written ? "its" : "part of its"), " memory with ",
                arguments[i].name, (both_written ? ", which is written too" : ""),
                "; pass a .clone()");
  });
}

void check_all_written(const CallFrame& frame) {
  for (const int32_t i : frame.op().tensor_arguments) {
    const Argument& argument = frame.op().arguments[i];
    if (!argument.mutated) continue;
    frame.for_each_tensor(i, [&](int, const at::Tensor& tensor) {
      check_written(frame, argument.name, tensor);
      check_overlap(frame, i, tensor);
    });
  }
}

constexpr int64_t kNoCount = -1;

// Makes the first size of an output what the kernel has counted. Its memory stays what it was.
void cut(const KernelOp& op, int output, int64_t count, at::Tensor& tensor) {
  const int64_t bound = tensor.size(0);
  if (count < 0 || count > bound) {
    const std::string got =
        count == kNoCount ? "it wrote none" : "it wrote " + std::to_string(count);
    raise_error(ErrorClass::kKernel, op.name, ": the kernel must write the count of output ",
                output, ", between 0 and ", bound, "; ", got);
  }
  Sizes sizes(tensor.sizes().begin(), tensor.sizes().end());
  sizes[0] = count;
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
}

// A declared number of blocks or work items.
int64_t count_of(const CallFrame& frame, const Expression& declared, const char* what,
                 int64_t lowest) {
  const int64_t count = evaluate(declared, frame);
  if (count >= lowest) return count;
  raise_error(ErrorClass::kContract, frame.op().name, ": the ", what, " '", declared.text,
              "' must be at least ", lowest, ", got ", count);
}

Grid grid_of(const CallFrame& frame) {
  const KernelOp& op = frame.op();
  Grid grid;
  if (!op.grid.program.empty()) grid.blocks = count_of(frame, op.grid, "grid", 1);
  if (op.work_items.program.empty()) return grid;
  grid.work_items = count_of(frame, op.work_items, "number of work items", grid.blocks);
  return grid;
}

// Raises KernelError with the kernel's reason when it says that it cannot run a described frame.
void check_can_implement(CallFrame& frame, const runtime::Kernel& kernel, const bringup_ctx* ctx) {
  if (C10_LIKELY(kernel.can_implement == nullptr)) return;
  const char* reason = nullptr;
  try {
    reason = kernel.can_implement(frame.args(), frame.size(), ctx);
  } catch (...) {
    raise_kernel_exception(frame.op().name, "can_implement threw",
                           "it should return the reason, or NULL");
  }
  if (C10_LIKELY(reason == nullptr)) return;
  raise_error(ErrorClass::kKernel, frame.op().name, ": the kernel cannot run this call: ", reason);
}

void run_on_cpu(CallFrame& frame, const Variant& variant) {
  const runtime::HostContext context;
  check_can_implement(frame, *variant.kernel, context.get());
  call_kernel(variant.kernel->run, frame.args(), frame.size(), context.get(), frame.op().name);
}

}  // namespace

void check_contract(CallFrame& frame) {
  frame.look();
  check_devices(frame);
  for (const Check& check : frame.op().checks) check.verify(frame);
  if (C10_UNLIKELY(frame.op().mutates)) check_all_written(frame);
}

void allocate_outputs(CallFrame& frame) {
  int output = 0;
  for (const OutputRule& rule : frame.op().outputs) rule.allocate(frame, output++);
  if (C10_LIKELY(frame.op().counts == 0)) return;
  const auto options = at::TensorOptions().dtype(at::kLong).device(frame.device());
  frame.add_output(at::full({frame.op().counts}, kNoCount, options));
}

at::Scalar number_in(const at::Tensor& output) {
  const void* data = output.const_data_ptr();
  if (output.scalar_type() == at::kDouble) return *static_cast<const double*>(data);
  if (output.scalar_type() == at::kBool) return *static_cast<const uint8_t*>(data) != 0;
  return *static_cast<const int64_t*>(data);
}

void settle(CallFrame& frame) {
  const KernelOp& op = frame.op();
  if (C10_LIKELY(!op.waits)) return;
  at::Tensor counts;
  if (op.counts > 0) counts = frame.outputs().pop_back_val().cpu();  // waits for the device
  at::Tensor* next = frame.outputs().data();
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    at::Tensor& output = *next;
    next += frame.output_size(static_cast<int>(i));
    if (op.outputs[i].number) output = output.cpu();
    if (op.outputs[i].count < 0) continue;
    cut(op, static_cast<int>(i), counts.const_data_ptr<int64_t>()[op.outputs[i].count], output);
  }
}

void run_kernel(CallFrame& frame, const Variant& variant) {
  frame.draw();
  frame.describe();
  const c10::Device device = frame.device();
  if (C10_LIKELY(device.is_cpu())) return run_on_cpu(frame, variant);
  if (variant.kernel->can_implement != nullptr) {
    const runtime::HostContext context(dlpack_device(device));
    check_can_implement(frame, *variant.kernel, context.get());
  }
  if (device.is_cuda()) return call_on_cuda(variant, frame.args(), frame.size(), device);
  if (variant.kernel->values != nullptr) {
    return launch_values(variant, frame.args(), device.index());
  }
  launch_kernel(variant, frame.pack(), grid_of(frame), device.index());
}

bool KernelOp::takes_layout(size_t argument, const at::Tensor& tensor) const {
  return takes_layout_inline(*this, argument, tensor);
}

bool KernelOp::runs_on(c10::DeviceType device) const {
  const auto key = device == c10::kCPU    ? c10::DispatchKey::CPU
                   : device == c10::kCUDA ? c10::DispatchKey::CUDA
                                          : c10::DispatchKey::PrivateUse1;
  return entry.lookup(c10::DispatchKeySet(key))._equalsBoxedAndUnboxed(backend_trampoline);
}

std::optional<PackedCall> KernelOp::pack(c10::ArrayRef<c10::IValue> inputs,
                                         c10::ArrayRef<at::Tensor> outputs) const {
  CallFrame frame(*this);
  frame.load(inputs);
  frame.look();
  const Variant& variant = variant_for(*this, frame);
  for (const at::Tensor& output : outputs) frame.add_output(output);
  frame.describe();
  return PackedCall{variant.kernel, frame.pack(), grid_of(frame), generator};
}

runtime::LaunchBlock KernelOp::pack_again(c10::ArrayRef<c10::IValue> inputs,
                                          c10::ArrayRef<at::Tensor> outputs,
                                          const PackedCall&) const {
  CallFrame frame(*this);
  frame.load(inputs);
  frame.look();
  for (const at::Tensor& output : outputs) frame.add_output(output);
  frame.describe();
  return frame.pack();
}

void KernelOp::check_captured(c10::ArrayRef<c10::IValue> inputs, c10::ArrayRef<at::Tensor> given,
                              const PackedCall& captured) const {
  CallFrame frame(*this);
  frame.load(inputs);
  check_contract(frame);
  const Variant* variant = find_variant(variant_key(*this, frame));
  if (variant == nullptr || variant->kernel != captured.kernel) {
    raise_error(ErrorClass::kContract, name,
                ": it would run another binary than in the captured graph: a "
                "value that chooses the binary (a macro) has changed; capture it again");
  }
  const at::Tensor* output = given.begin();
  for (size_t i = 0; i < outputs.size() && output != given.end(); ++i) {
    const at::Tensor& former = *output;
    output += frame.output_size(static_cast<int>(i));
    if (outputs[i].list) continue;  // the tensors of a list are not updated
    Sizes computed;
    const at::IntArrayRef sizes = outputs[i].sizes_for(frame, static_cast<int>(i), computed);
    if (former.sizes() == sizes) continue;
    raise_error(ErrorClass::kContract, name, ": its output would have shape ", sizes_text(sizes),
                ", and has ", sizes_text(former.sizes()), " in the captured graph");
  }
  for (const at::Tensor& tensor : given) frame.add_output(tensor);
  frame.describe();
  const runtime::HostContext context(dlpack_device(frame.device()));
  check_can_implement(frame, *captured.kernel, context.get());
  const Grid now = grid_of(frame);
  if (now == captured.grid) return;
  const auto text = [](const Grid& grid) {
    return std::to_string(grid.blocks) + " blocks" +
           (grid.work_items == 0 ? "" : " of " + std::to_string(grid.work_items) + " work items");
  };
  raise_error(ErrorClass::kContract, name, ": it would run on ", text(now), ", and runs on ",
              text(captured.grid), " in the captured graph");
}

}  // namespace bringup::torch_ext
