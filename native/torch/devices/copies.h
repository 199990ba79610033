// Copies between host and device and within the device.
#pragma once

#include <ATen/core/Tensor.h>

namespace bringup::torch_ext {

// A CPU tensor with the same values, sizes and strides, through linear copies only.
at::Tensor copy_to_host(const at::Tensor& device_tensor);

}  // namespace bringup::torch_ext
