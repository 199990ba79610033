// Which dtypes tensors of a device may have, wherever a device tensor comes to be.
#include "torch/devices/dtypes.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <atomic>

namespace bringup::torch_ext {
namespace {

DtypeSet only(c10::ScalarType type) { return DtypeSet{1} << static_cast<int>(type); }

std::atomic<Float64Policy> g_float64_policy{Float64Policy::kError};

std::string dtype_name(c10::ScalarType type) {
  return "torch." + std::string(c10::getDtypeNames(type).first);
}

std::string device_name(c10::DeviceIndex device) {
  return driver_facts().device_name + ":" + std::to_string(device);
}

c10::ScalarType half_the_size(c10::ScalarType type) {
  return type == c10::ScalarType::ComplexDouble ? c10::ScalarType::ComplexFloat
                                                : c10::ScalarType::Float;
}

const char* closest_supported(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Double:
      return "torch.float32";
    case c10::ScalarType::ComplexDouble:
      return "torch.complex64";
    default:
      return "another dtype";
  }
}

}  // namespace

DtypeSet absent_dtypes(const bringup_device_props& props) noexcept {
  DtypeSet absent = 0;
  if (props.supports_float64 == 0) {
    absent |= only(c10::ScalarType::Double) | only(c10::ScalarType::ComplexDouble);
  }
  return absent;
}

void refuse_dtype(c10::ScalarType type, c10::DeviceIndex device) {
  const std::string dtype = dtype_name(type);
  const std::string name = device_name(device);
  const char* other = closest_supported(type);
  TORCH_CHECK_TYPE(false, "device '", name, "' has no tensors of ", dtype,
                   ", as its driver says: expected ", other, ", got ", dtype,
                   ". Cast before the tensor gets there, as in tensor.to('", name, "', ", other,
                   "), give the operator dtype=", other, ", or leave the tensor on the cpu");
}

void set_float64_policy(Float64Policy policy) noexcept { g_float64_policy = policy; }

Placement place_absent(c10::ScalarType type, c10::DeviceIndex device) {
  switch (g_float64_policy.load()) {
    case Float64Policy::kWarn: {
      const c10::ScalarType smaller = half_the_size(type);
      TORCH_WARN("device '", device_name(device), "' has no tensors of ", dtype_name(type),
                 ", so this one is ", dtype_name(smaller), " (downcast_float64='warn')");
      return {smaller};
    }
    case Float64Policy::kCpu:
      TORCH_WARN("device '", device_name(device), "' has no tensors of ", dtype_name(type),
                 ", so this one is on the cpu (downcast_float64='cpu')");
      return {type, true};
    case Float64Policy::kError:
      break;
  }
  refuse_dtype(type, device);
}

}  // namespace bringup::torch_ext
