// The operators that a device must have itself: allocation and storage (views: metadata.cpp); and
// on the host those that torch has for devices alone.
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "torch/devices/allocator.h"
#include "torch/devices/copies.h"
#include "torch/devices/dtypes.h"
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
  return filled_if_deterministic(at::detail::empty_generic(size, &device_allocator(), kDriverKeys,
                                                           place.dtype, memory_format));
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                     std::optional<at::ScalarType> dtype, std::optional<c10::Layout> layout,
                     std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  const Placement place = check_factory(dtype, layout, pin_memory);
  check_narrowed(place, dtype, size);
  if (C10_UNLIKELY(place.on_host)) return at::empty_strided(size, stride, place.dtype);
  return filled_if_deterministic(at::detail::empty_strided_generic(
      size, stride, &device_allocator(), kDriverKeys, place.dtype));
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

// As the CPU lays them out: by channels where the input or the weight is.
at::MemoryFormat format_of(const Tensor& input, const Tensor& weight) {
  for (const Tensor* tensor : {&input, &weight}) {
    const at::MemoryFormat format = tensor->suggest_memory_format();
    if (format != at::MemoryFormat::Contiguous) return format;
  }
  return at::MemoryFormat::Contiguous;
}

// torch sends convolutions to PrivateUse1 under names that have no kernel elsewhere. With these the
// fallback and who asks for the shapes of results find what they find of other operators.
Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                   c10::SymIntArrayRef dilation, bool transposed,
                   c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Tensor result = at::convolution_symint(input, weight, bias, stride, padding, dilation,
                                               transposed, output_padding, std::move(groups));
  return result.contiguous(format_of(input, weight));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad, const Tensor& input, const Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
    c10::SymIntArrayRef output_padding, c10::SymInt groups, std::array<bool, 3> wanted) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const std::vector<c10::SymInt> bias_size = {
      grad.sym_size(1)};  // one bias a channel of the output
  return at::convolution_backward_symint(grad, input, weight, c10::SymIntArrayRef(bias_size),
                                         stride, padding, dilation, transposed, output_padding,
                                         std::move(groups), wanted);
}

// Of a device's own fused norm; torch's for the CPU is made of other operators.
std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad, const Tensor& input,
                                             c10::IntArrayRef normalized_shape, const Tensor& rstd,
                                             const std::optional<Tensor>& weight,
                                             std::array<bool, 2> wanted) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto kept = input.dim() - static_cast<int64_t>(normalized_shape.size());
  std::vector<int64_t> rows, columns;
  for (int64_t dim = 0; dim < input.dim(); ++dim) (dim < kept ? rows : columns).push_back(dim);
  const auto computed = at::toOpMathType(input.scalar_type());
  const Tensor given = grad.to(computed), scale = rstd.to(computed);
  const Tensor normed = input.to(computed) * scale;
  std::tuple<Tensor, Tensor> results;
  if (wanted[0]) {
    const bool weighted = weight.has_value() && weight->defined();
    const Tensor scaled = weighted ? given * weight->to(computed) : given;
    const Tensor along = (scaled * normed).mean(columns, true);
    std::get<0>(results) = ((scaled - normed * along) * scale).to(input.scalar_type());
  }
  if (wanted[1]) {
    const Tensor product = given * normed;
    const Tensor sum = rows.empty() ? product : product.sum(rows);
    std::get<1>(results) = sum.to(input.scalar_type());
  }
  return results;
}

// `parameter.data = there`, by which a module moves to a device and keeps its parameters: what is
// tied stays tied, and optimizers go on with them. torch lets dense tensors of its own devices do
// so.
bool can_become(const Tensor& self, const Tensor& from) {
  const auto is_dense = [](c10::DispatchKeySet keys) {
    return keys.has_any(c10::DispatchKeySet(c10::DispatchKey::Dense)) &&
           keys.has_any(c10::DispatchKeySet(
               {c10::BackendComponent::CPUBit, c10::BackendComponent::PrivateUse1Bit}));
  };
  return self.key_set() == from.key_set() || (is_dense(self.key_set()) && is_dense(from.key_set()));
}

}  // namespace

void register_operators() {
  static auto* library = new KitLibrary("aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("empty.memory_format", &empty);
  library->impl("empty_strided", &empty_strided);
  library->impl("_efficientzerotensor", &zero_tensor);
  library->impl("resize_", &resize);
  library->impl("set_.source_Tensor", &at::native::set_tensor_);
  library->impl("set_.source_Storage", &set_to_storage);
  library->impl("set_.source_Storage_storage_offset", &set_to_storage_at);
  library->impl("is_set_to", &at::native::is_set_to);
  library->impl("record_stream", &record_stream);
  library->impl("_has_compatible_shallow_copy_type", &can_become);
  for (const c10::DispatchKey key : {c10::DispatchKey::CPU, c10::DispatchKey::Meta}) {
    auto* others = new KitLibrary("aten", key, __FILE__, __LINE__);
    others->impl("convolution_overrideable", &convolution);
    others->impl("convolution_backward_overrideable", &convolution_backward);
    others->impl("_fused_rms_norm_backward", &rms_norm_backward);
  }
}

}  // namespace bringup::torch_ext
