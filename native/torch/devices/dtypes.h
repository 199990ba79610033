// What becomes of a tensor whose dtype the device lacks (float64 and complex128, by its driver's
// word): refused, made in the dtype of half the size, or made on the host.
#pragma once

#include "torch/devices/state.h"

namespace bringup::torch_ext {

enum class Float64Policy { kError, kWarn, kCpu };

// For the whole process; kError until it is called.
void set_float64_policy(Float64Policy policy) noexcept;

// Where a new tensor goes, and in which dtype.
struct Placement {
  c10::ScalarType dtype;
  bool on_host = false;
};

Placement place_absent(c10::ScalarType type, c10::DeviceIndex device);
// TypeError where the policy refuses; a warning, which Python shows once a line of code, where it
// changes anything.
inline Placement place(c10::ScalarType type, c10::DeviceIndex device) {
  const DtypeSet absent = driver_facts().absent_dtypes[static_cast<size_t>(device)];
  if (C10_LIKELY((absent >> static_cast<int>(type) & 1) == 0)) return {type};
  return place_absent(type, device);
}

}  // namespace bringup::torch_ext
