// Copies between host and device and within the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

namespace bringup::torch_ext {

struct OperatorKernel;

// A call of the device's kernel of an operator.
struct NativeCall {
  const OperatorKernel* kernel;
  std::vector<c10::IValue> arguments;
};

// A copy within the device by its kernel of the functional copy, in any layout and dtype. Nothing
// where it has none, or the copy is no such one.
std::optional<NativeCall> native_copy(const at::Tensor& source, const at::Tensor& target);

// A CPU tensor with the same values, sizes and strides, through linear copies only.
at::Tensor copy_to_host(const at::Tensor& device_tensor);

}  // namespace bringup::torch_ext
