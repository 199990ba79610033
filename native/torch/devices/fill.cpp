// fill_ and zero_ in stream order: the driver repeats the bytes of one element.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "torch/devices/fallback.h"
#include "torch/devices/profiler.h"
#include "torch/devices/registration.h"
#include "torch/devices/state.h"

namespace bringup::torch_ext {
namespace {

// The bytes of one element. The host's own kernels convert the value, so that they are what it
// writes on cpu, and a value that does not fit is refused with the same words. They convert a
// number for a single element otherwise than for several, and a tensor otherwise than a number: to
// float8 without a look at the range.
class Pattern {
 public:
  // Zeros, which are zero bytes in every dtype.
  explicit Pattern(const at::Tensor& like) : size_(like.element_size()) {}
  // `value`: a number, or a tensor of the host with one.
  Pattern(const c10::IValue& value, const at::Tensor& like) : Pattern(like) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const int64_t count = std::min<int64_t>(like.numel(), 2);
    at::Tensor elements = at::from_blob(bytes_.data(), {count}, like.dtype());
    if (value.isTensor()) {
      at::_ops::fill__Tensor::redispatch(kCpuKeys, elements, value.toTensor());
    } else {
      at::_ops::fill__Scalar::redispatch(kCpuKeys, elements, value.toScalar());
    }
  }

  const std::byte* data() const { return bytes_.data(); }
  size_t size() const { return size_; }
  bool is_one_byte() const {
    return std::all_of(bytes_.begin() + 1, bytes_.begin() + static_cast<ptrdiff_t>(size_),
                       [this](std::byte byte) { return byte == bytes_[0]; });
  }

 private:
  alignas(16) std::array<std::byte, 32> bytes_{};
  size_t size_;
};

bool is_one_range(const at::Tensor& self) {
  return self.numel() > 0 && self.is_non_overlapping_and_dense() && !self.is_conj() &&
         !self.is_neg();
}

// False when the driver cannot: then nothing was done.
bool fill_in_stream(const at::Tensor& self, const Pattern& pattern) {
  const bringup_driver& driver = *active_driver();
  void* address = self.data_ptr();
  const bool bytes = driver.fill_async != nullptr && pattern.is_one_byte();
  const bool aligned = reinterpret_cast<uintptr_t>(address) % pattern.size() == 0;
  if (!bytes && (driver.fill_wide_async == nullptr || !aligned)) return false;

  const c10::DeviceIndex device = self.device().index();
  const c10::DeviceGuard guard(self.device());
  const c10::Stream stream = current_stream(device);
  const ProfiledWork work(ProfiledFill{self.nbytes()}, stream);
  const int32_t status =
      bytes ? driver.fill_async(device, address, static_cast<uint8_t>(*pattern.data()),
                                self.nbytes(), native_stream(stream))
            : driver.fill_wide_async(device, address, pattern.data(),
                                     static_cast<uint32_t>(pattern.size()),
                                     static_cast<size_t>(self.numel()), native_stream(stream));
  check_driver(status, "filling memory");
  return true;
}

// A tensor of a device has to be waited for.
bool is_on_host(const c10::IValue& value) {
  return value.isScalar() || (value.toTensor().dim() == 0 && value.toTensor().is_cpu());
}

void fill(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const at::Tensor& self = (*stack)[stack->size() - 2].toTensor();
  const c10::IValue& value = stack->back();
  if (self.numel() == 0 && is_on_host(value)) {
    const Pattern refused(value, self);  // where the value does not fit
    stack->pop_back();
    return;
  }
  if (!is_one_range(self) || !is_on_host(value) || !fill_in_stream(self, Pattern(value, self))) {
    return fall_back(op, keys, stack);
  }
  stack->pop_back();  // what is left is the result
}

void zero(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const at::Tensor& self = stack->back().toTensor();
  if (self.numel() == 0) return;
  if (!is_one_range(self) || !fill_in_stream(self, Pattern(self))) fall_back(op, keys, stack);
}

}  // namespace

void register_fills() {
  static auto* library = new KitLibrary("aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("fill_.Scalar", torch::CppFunction::makeFromBoxedFunction<&fill>());
  library->impl("fill_.Tensor", torch::CppFunction::makeFromBoxedFunction<&fill>());
  library->impl("zero_", torch::CppFunction::makeFromBoxedFunction<&zero>());
}

}  // namespace bringup::torch_ext
