#include <c10/core/DefaultDtype.h>

#include <algorithm>

#include "torch/common/values.h"
#include "torch/devices/state.h"
#include "torch/operators/operator_kernel.h"

namespace bringup::torch_ext {
namespace {

constexpr int kDtypeBits = 6;
constexpr int kTensorBits = 9;
constexpr int kScalarBits = 4;
constexpr int kStringBits = 5;
constexpr uint64_t kNoTensor = (1u << kTensorBits) - 1;
constexpr uint64_t kMixedTensors = kNoTensor - 1;  // no tensor has it: there is no such priority
constexpr uint64_t kNoScalar = (1u << kScalarBits) - 1;
constexpr uint64_t kNoDtype = (1u << kDtypeBits) - 1;
constexpr uint64_t kNoString = (1u << kStringBits) - 1;

int bits_of(const Argument& argument) {
  switch (argument.kind) {
    case ArgumentKind::kTensor:
    case ArgumentKind::kTensorList:
    case ArgumentKind::kOptionalTensorList:
      return kTensorBits;
    case ArgumentKind::kNumber:
      return kScalarBits;
    case ArgumentKind::kString:
      return kStringBits;
    case ArgumentKind::kDtype:
      return kDtypeBits;
    default:
      return 1;
  }
}

// What decides which dtype a result gets: a tensor's own, and of which priority it is.
uint64_t tensor_code(const at::Tensor& tensor) {
  if (!tensor.defined()) return kNoTensor;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const uint64_t priority = impl.is_wrapped_number() ? 2 : impl.dim() == 0 ? 1 : 0;
  return static_cast<uint64_t>(tensor.scalar_type()) | priority << kDtypeBits |
         static_cast<uint64_t>(tensor.is_cpu()) << (kDtypeBits + 2);
}

// Of a list's first tensor, unless another one has another dtype.
uint64_t list_code(const c10::IValue& tensors) {
  const at::Tensor* first = nullptr;
  bool mixed = false;
  for_each_tensor(tensors, [&](const at::Tensor& tensor) {
    if (first == nullptr) first = &tensor;
    mixed = mixed || tensor.scalar_type() != first->scalar_type();
  });
  return first == nullptr ? kNoTensor : mixed ? kMixedTensors : tensor_code(*first);
}

// Operators promote by a number's category, and refuse some that are negative.
uint64_t scalar_code(const c10::Scalar& scalar) {
  if (scalar.isComplex()) return 3;
  if (scalar.isBoolean()) return 2;
  if (scalar.isFloatingPoint()) return 1 | static_cast<uint64_t>(scalar.toDouble() < 0) << 2;
  return static_cast<uint64_t>(scalar.toLong() < 0) << 2;
}

uint64_t string_code(const OperatorKernel& kernel, const std::string& text) {
  const std::lock_guard lock(kernel.mutex);
  const auto found = std::find(kernel.strings.begin(), kernel.strings.end(), text);
  const auto number = static_cast<uint64_t>(found - kernel.strings.begin());
  if (found != kernel.strings.end()) return number;
  TORCH_CHECK(number < kNoString, kernel.name, ": it was called with more than ", kNoString,
              " different strings, the last is '", text, "'");
  kernel.strings.push_back(text);
  return number;
}

uint64_t code_of(const OperatorKernel& kernel, const c10::IValue& value, ArgumentKind kind) {
  switch (kind) {
    case ArgumentKind::kTensor:
      return value.isTensor() ? tensor_code(value.toTensor()) : kNoTensor;
    case ArgumentKind::kTensorList:
    case ArgumentKind::kOptionalTensorList:
      return list_code(value);
    case ArgumentKind::kNumber:
      return value.isScalar() ? scalar_code(value.toScalar()) : kNoScalar;
    case ArgumentKind::kString:
      return value.isString() ? string_code(kernel, value.toStringRef()) : kNoString;
    case ArgumentKind::kDtype:
      return value.isInt() ? static_cast<uint64_t>(value.toInt()) : kNoDtype;
    default:
      return value.isNone() ? 1 : 0;
  }
}

}  // namespace

int key_bits(const OperatorKernel& kernel) {
  int bits = runtime::kOperatorBits + kDtypeBits + runtime::kDeviceModelBits;
  for (const Argument& argument : kernel.arguments) bits += bits_of(argument);
  return bits;
}

runtime::Key128 variant_key(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                            c10::DeviceIndex device) {
  runtime::KeyPacker packer = key_of(kernel);
  packer.put(static_cast<uint64_t>(c10::typeMetaToScalarType(c10::get_default_dtype())),
             kDtypeBits);
  packer.put(device_model({kDriverDevice, device}), runtime::kDeviceModelBits);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Argument& argument = kernel.arguments[i];
    packer.put(code_of(kernel, arguments[i], argument.kind), bits_of(argument));
  }
  return packer.key();
}

}  // namespace bringup::torch_ext
