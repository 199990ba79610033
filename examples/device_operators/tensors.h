// Between torch's tensors and a launch.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <utility>

#include "launch.h"

namespace vendor {

// DLPack's name for a dtype that the kernels know.
inline DLDataType dl_dtype(c10::ScalarType type) {
  const auto bits = static_cast<uint8_t>(8 * c10::elementSize(type));
  if (c10::isIntegralType(type, /*includeBool=*/false)) return {0, bits, 1};
  if (type == c10::kFloat || type == c10::kDouble) return {2, bits, 1};
  return {255, bits, 1};  // for which no kernel is picked
}

inline void add_tensor(Launch& launch, const at::Tensor& tensor) {
  launch.tensor(tensor.data_ptr(), dl_dtype(tensor.scalar_type()), tensor.sizes().vec(),
                tensor.strides().vec());
}

// Starts a kernel on the current stream of the device.
inline void start(Launch&& launch, bringup_kernel_fn kernel, c10::Device device) {
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  std::move(launch).start(kernel, device.index(), stream.native_handle());
}

// A kernel that was picked by dtype: NotImplementedError where there is none.
inline bringup_kernel_fn checked(bringup_kernel_fn kernel, const char* name, c10::ScalarType type) {
  TORCH_CHECK_NOT_IMPLEMENTED(kernel != nullptr, name, ": the device has no kernel for ", type);
  return kernel;
}

}  // namespace vendor
