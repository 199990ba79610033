// The operators that a device must have itself: allocation, views, storage, and what the two are on
// the host that torch's core sends to PrivateUse1 under another name (convolution).
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "torch/devices/allocator.h"
#include "torch/devices/copies.h"
#include "torch/devices/dtypes.h"
#include "torch/devices/fallback.h"
#include "torch/devices/fallback_policy.h"
#include "torch/devices/host_call.h"
#include "torch/devices/registration.h"
#include "torch/devices/state.h"

namespace bringup::torch_ext {
namespace {

using at::Tensor;

// What a tensor of the current device cannot be; in which dtype it is made, and where.
Placement check_factory(std::optional<at::ScalarType> dtype, std::optional<c10::Layout> layout,
                        std::optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false),
              "only CPU tensors can be pinned, not tensors of device '", driver_facts().device_name,
              "'");
  TORCH_CHECK(layout.value_or(c10::kStrided) == c10::kStrided, "device '",
              driver_facts().device_name, "' has strided tensors only, not layout ", *layout);
  return place(c10::dtype_or_default(dtype), current_device());
}

bool has_elements(c10::IntArrayRef size) {
  return std::find(size.begin(), size.end(), 0) == size.end();
}

// A tensor without elements is what torch.load and others give a storage to, whose bytes are those
// of the dtype that was asked for.
void check_narrowed(const Placement& place, std::optional<at::ScalarType> dtype,
                    c10::IntArrayRef size) {
  const c10::ScalarType asked = c10::dtype_or_default(dtype);
  if (C10_UNLIKELY(place.dtype != asked && !has_elements(size))) {
    refuse_dtype(asked, current_device());
  }
}

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
             std::optional<c10::Layout> layout, std::optional<c10::Device> device,
             std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> memory_format) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  const Placement place = check_factory(dtype, layout, pin_memory);
  check_narrowed(place, dtype, size);
  if (C10_UNLIKELY(place.on_host)) return at::empty(size, place.dtype, memory_format);
  return at::detail::empty_generic(size, &device_allocator(), kDriverKeys, place.dtype,
                                   memory_format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                     std::optional<at::ScalarType> dtype, std::optional<c10::Layout> layout,
                     std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  const Placement place = check_factory(dtype, layout, pin_memory);
  check_narrowed(place, dtype, size);
  if (C10_UNLIKELY(place.on_host)) return at::empty_strided(size, stride, place.dtype);
  return at::detail::empty_strided_generic(size, stride, &device_allocator(), kDriverKeys,
                                           place.dtype);
}

// A tensor of zeros without memory, which autograd uses for gradients that are known to be zero.
Tensor zero_tensor(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                   std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                   std::optional<bool> pin_memory) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  const Placement place = check_factory(dtype, layout, pin_memory);
  if (C10_UNLIKELY(place.on_host)) return at::_efficientzerotensor(size, place.dtype);
  at::native::ZeroTensorAllocator nothing(c10::Device(kDriverDevice, current_device()));
  Tensor zeros = at::detail::empty_generic(
      size, &nothing, kDriverKeys.add(c10::DispatchKey::ZeroTensor), place.dtype, std::nullopt);
  zeros.storage().unsafeGetStorageImpl()->set_allocator(&device_allocator());
  return zeros;
}

Tensor view_dtype(const Tensor& self, at::ScalarType dtype) {
  check_dtype(dtype, self.device().index());
  return at::native::view_dtype(self, dtype);
}

const Tensor& resize(const Tensor& self, c10::IntArrayRef size,
                     std::optional<c10::MemoryFormat> memory_format) {
  TORCH_CHECK(memory_format != c10::MemoryFormat::Preserve, "resize_ has no memory format ",
              c10::MemoryFormat::Preserve, " to take: name the format of the result");
  const size_t former = self.storage().nbytes();
  if (has_elements(size)) {
    grow(self.storage(),
         at::detail::computeStorageNbytesContiguous(size, self.dtype().itemsize(),
                                                    static_cast<size_t>(self.storage_offset())));
  }
  at::native::resize_(self, size, memory_format);
  const at::Context& context = at::globalContext();
  if (C10_UNLIKELY(context.deterministicAlgorithms() &&
                   context.deterministicFillUninitializedMemory())) {
    at::native::fill_resize_deterministic_(self, static_cast<int64_t>(former));
  }
  return self;
}

Tensor& set_to_storage(Tensor& self, at::Storage source) {
  return at::native::set_(self, std::move(source));
}
Tensor& set_to_storage_at(Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size,
                          c10::IntArrayRef stride) {
  at::native::checkSetStorage(self, source, offset, size, stride);
  if (has_elements(size)) {
    const size_t itemsize = self.dtype().itemsize();
    const auto first = static_cast<size_t>(offset);
    grow(source, stride.data() != nullptr
                     ? at::detail::computeStorageNbytes(size, stride, itemsize, first)
                     : at::detail::computeStorageNbytesContiguous(size, itemsize, first));
  }
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

void record_stream(Tensor& self, c10::Stream stream) {
  device_allocator().recordStream(self.storage().data_ptr(), stream);
}

std::optional<Tensor> stand_in(HostCall& call, const std::optional<Tensor>& tensor) {
  if (!tensor.has_value() || !tensor->defined()) return std::nullopt;
  return call.stand_in(*tensor, false);
}

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                   c10::SymIntArrayRef dilation, bool transposed,
                   c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  static FallbackRecord& record = fallback_record({"aten::convolution_overrideable", ""});
  FallbackCall counted(record);
  CommonDevice common;
  for (const Tensor* tensor : {&input, &weight}) common.see(*tensor, false);
  if (bias.has_value() && bias->defined()) common.see(*bias, false);
  const c10::DeviceGuard guard(common.get("aten::convolution"));
  HostCall call(input.device().index(), host_call_mode());
  const Tensor images = call.stand_in(input, false);
  const Tensor filters = call.stand_in(weight, false);
  const std::optional<Tensor> added = stand_in(call, bias);
  call.wait();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Tensor result =
      call.adopt(at::convolution_symint(images, filters, added, stride, padding, dilation,
                                        transposed, output_padding, std::move(groups)));
  counted.copied(call.bytes_to_host(), call.bytes_to_device());
  return result;
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad, const Tensor& input, const Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
    c10::SymIntArrayRef output_padding, c10::SymInt groups, std::array<bool, 3> wanted) {
  static FallbackRecord& record = fallback_record({"aten::convolution_backward_overrideable", ""});
  FallbackCall counted(record);
  CommonDevice common;
  for (const Tensor* tensor : {&grad, &input, &weight}) common.see(*tensor, false);
  const c10::DeviceGuard guard(common.get("aten::convolution_backward"));
  HostCall call(input.device().index(), host_call_mode());
  const Tensor given = call.stand_in(grad, false);
  const Tensor images = call.stand_in(input, false);
  const Tensor filters = call.stand_in(weight, false);
  call.wait();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const std::vector<c10::SymInt> bias_size = {
      grad.sym_size(1)};  // one bias a channel of the output
  auto [grad_input, grad_weight, grad_bias] = at::convolution_backward_symint(
      given, images, filters, c10::SymIntArrayRef(bias_size), stride, padding, dilation, transposed,
      output_padding, std::move(groups), wanted);
  std::tuple results(call.adopt(grad_input), call.adopt(grad_weight), call.adopt(grad_bias));
  counted.copied(call.bytes_to_host(), call.bytes_to_device());
  return results;
}

// As the CPU lays them out: by channels where the input or the weight is.
at::MemoryFormat format_of(const Tensor& input, const Tensor& weight) {
  for (const Tensor* tensor : {&input, &weight}) {
    const at::MemoryFormat format = tensor->suggest_memory_format();
    if (format != at::MemoryFormat::Contiguous) return format;
  }
  return at::MemoryFormat::Contiguous;
}

// Shapes and layouts alone.
Tensor convolution_meta(const Tensor& input, const Tensor& weight,
                        const std::optional<Tensor>& bias, c10::SymIntArrayRef stride,
                        c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
                        c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  const Tensor result = at::convolution_symint(input, weight, bias, stride, padding, dilation,
                                               transposed, output_padding, std::move(groups));
  return result.contiguous(format_of(input, weight));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward_meta(
    const Tensor& grad, const Tensor& input, const Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
    c10::SymIntArrayRef output_padding, c10::SymInt groups, std::array<bool, 3> wanted) {
  const std::vector<c10::SymInt> bias_size = {grad.sym_size(1)};
  return at::convolution_backward_symint(grad, input, weight, c10::SymIntArrayRef(bias_size),
                                         stride, padding, dilation, transposed, output_padding,
                                         std::move(groups), wanted);
}

}  // namespace

void register_operators() {
  static auto* library = new KitLibrary("aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("empty.memory_format", &empty);
  library->impl("empty_strided", &empty_strided);
  library->impl("_efficientzerotensor", &zero_tensor);
  library->impl("as_strided", &at::native::as_strided_tensorimpl);
  library->impl("view", &at::native::view);
  library->impl("view.dtype", &view_dtype);
  library->impl("_reshape_alias", &at::native::_reshape_alias);
  library->impl("resize_", &resize);
  library->impl("set_.source_Tensor", &at::native::set_tensor_);
  library->impl("set_.source_Storage", &set_to_storage);
  library->impl("set_.source_Storage_storage_offset", &set_to_storage_at);
  library->impl("is_set_to", &at::native::is_set_to);
  library->impl("record_stream", &record_stream);
  // torch has neither a CPU kernel nor a Meta kernel for these two.
  add_host_form({"aten::convolution_overrideable", ""},
                c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(convolution)));
  add_host_form({"aten::convolution_backward_overrideable", ""},
                c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(convolution_backward)));
  static auto* shapes = new KitLibrary("aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
  shapes->impl("convolution_overrideable", &convolution_meta);
  shapes->impl("convolution_backward_overrideable", &convolution_backward_meta);
}

}  // namespace bringup::torch_ext
