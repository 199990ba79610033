// Which dtypes tensors of a device may have, wherever a device tensor comes to be.
#include "torch/devices/dtypes.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <initializer_list>
#include <string>

#include "torch/common/dtype_bits.h"
#include "torch/common/values.h"

namespace bringup::torch_ext {
namespace {

DtypeSet only(c10::ScalarType type) { return DtypeSet{1} << static_cast<int>(type); }

std::atomic<Float64Policy> g_float64_policy{Float64Policy::kError};

std::string device_name(c10::DeviceIndex device) {
  return driver_facts().device_name + ":" + std::to_string(device);
}

c10::ScalarType half_the_size(c10::ScalarType type) {
  return type == c10::ScalarType::ComplexDouble ? c10::ScalarType::ComplexFloat
                                                : c10::ScalarType::Float;
}

// What the device has for it, as nearly the same as may be; no name: nothing like it.
const char* closest_supported(c10::ScalarType type, DtypeSet absent) {
  using Type = c10::ScalarType;
  struct Choice {
    Type type;
    const char* name;
  };
  const auto first = [&](std::initializer_list<Choice> choices) -> const char* {
    for (const Choice& choice : choices) {
      if ((absent & only(choice.type)) == 0) return choice.name;
    }
    return nullptr;
  };
  constexpr Choice kFloat{Type::Float, "torch.float32"};
  constexpr Choice kHalf{Type::Half, "torch.float16"};
  constexpr Choice kBfloat{Type::BFloat16, "torch.bfloat16"};
  if (c10::isComplexType(type)) return first({{Type::ComplexFloat, "torch.complex64"}});
  if (c10::isFloatingType(type)) return first({kFloat, kBfloat, kHalf});
  return first({{Type::Int, "torch.int32"}, {Type::Long, "torch.int64"}});
}

}  // namespace

DtypeSet absent_dtypes(const bringup_device_props& props) noexcept {
  DtypeSet absent = 0;
  for (const auto& [bit, type] : kDtypeBits) {
    if (props.dtypes != 0 && (props.dtypes & bit) == 0) absent |= only(type);
  }
  if (props.supports_float64 == 0) {
    absent |= only(c10::ScalarType::Double) | only(c10::ScalarType::ComplexDouble);
  }
  return absent;
}

std::vector<std::string> dtype_names(const bringup_device_props& props) {
  const DtypeSet absent = absent_dtypes(props);
  std::vector<std::string> names;
  for (const auto& [bit, type] : kDtypeBits) {
    if ((absent & only(type)) == 0) names.emplace_back(c10::getDtypeNames(type).first);
  }
  return names;
}

void refuse_dtype(c10::ScalarType type, c10::DeviceIndex device) {
  const std::string dtype = dtype_text(type);
  const std::string name = device_name(device);
  const DtypeSet absent = driver_facts().absent_dtypes[static_cast<size_t>(device)];
  const char* other = closest_supported(type, absent);
  TORCH_CHECK_TYPE(
      other != nullptr, "device '", name, "' has no tensors of ", dtype,
      ", as its driver says, and none of a dtype like it. Leave the tensor on the cpu");
  TORCH_CHECK_TYPE(false, "device '", name, "' has no tensors of ", dtype,
                   ", as its driver says: expected ", other, ", got ", dtype,
                   ". Cast before the tensor gets there, as in tensor.to('", name, "', ", other,
                   "), give the operator dtype=", other, ", or leave the tensor on the cpu");
}

void set_float64_policy(Float64Policy policy) noexcept { g_float64_policy = policy; }

Placement place_absent(c10::ScalarType type, c10::DeviceIndex device) {
  // The policy is about float64: a driver may lack other dtypes too.
  const bool is_float64 = type == c10::ScalarType::Double || type == c10::ScalarType::ComplexDouble;
  if (!is_float64) refuse_dtype(type, device);
  switch (g_float64_policy.load()) {
    case Float64Policy::kWarn: {
      const c10::ScalarType smaller = half_the_size(type);
      check_dtype(smaller, device);
      TORCH_WARN("device '", device_name(device), "' has no tensors of ", dtype_text(type),
                 ", so this one is ", dtype_text(smaller), " (downcast_float64='warn')");
      return {smaller};
    }
    case Float64Policy::kCpu:
      TORCH_WARN("device '", device_name(device), "' has no tensors of ", dtype_text(type),
                 ", so this one is on the cpu (downcast_float64='cpu')");
      return {type, true};
    case Float64Policy::kError:
      break;
  }
  refuse_dtype(type, device);
}

}  // namespace bringup::torch_ext
