#include "torch/ops/schema.h"

#include <array>
#include <utility>

#include "torch/common/errors.h"

namespace bringup::torch_ext {
namespace {

constexpr std::array<std::pair<std::string_view, ArgumentKind>, 10> kKinds{{
    {"Tensor", ArgumentKind::kTensor},
    {"Tensor[]", ArgumentKind::kTensorList},
    {"int", ArgumentKind::kInt},
    {"float", ArgumentKind::kFloat},
    {"bool", ArgumentKind::kBool},
    {"str", ArgumentKind::kString},
    {"ScalarType", ArgumentKind::kDtype},
    {"int[]", ArgumentKind::kIntList},
    {"float[]", ArgumentKind::kFloatList},
    {"bool[]", ArgumentKind::kBoolList},
}};

}  // namespace

ArgumentKind argument_kind(std::string_view schema_type) {
  for (const auto& [name, kind] : kKinds) {
    if (name == schema_type) return kind;
  }
  raise_error(ErrorClass::kSchema,
              "the kernel ABI has no argument type '" + std::string(schema_type) + "'");
}

}  // namespace bringup::torch_ext
