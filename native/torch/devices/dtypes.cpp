// Which dtypes tensors of a device may have: what its driver says it has not is refused wherever a
// device tensor comes to be.
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "torch/devices/state.h"

namespace bringup::torch_ext {
namespace {

DtypeSet only(c10::ScalarType type) { return DtypeSet{1} << static_cast<int>(type); }

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
  const std::string dtype = "torch." + std::string(c10::getDtypeNames(type).first);
  const std::string name = driver_facts().device_name + ":" + std::to_string(device);
  const char* other = closest_supported(type);
  TORCH_CHECK_TYPE(false, "device '", name, "' has no tensors of ", dtype,
                   ", as its driver says: expected ", other, ", got ", dtype,
                   ". Cast before the tensor gets there, as in tensor.to('", name, "', ", other,
                   "), give the operator dtype=", other, ", or leave the tensor on the cpu");
}

}  // namespace bringup::torch_ext
