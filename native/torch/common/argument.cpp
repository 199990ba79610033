#include "torch/common/argument.h"

#include <ATen/core/jit_type.h>

#include "torch/common/errors.h"
#include "torch/common/written_arguments.h"

namespace bringup::torch_ext {
namespace {

ArgumentKind list_kind_of(const c10::Type& element) {
  if (const auto* optional = element.castRaw<c10::OptionalType>()) {
    const bool of_tensors = optional->getElementType()->kind() == c10::TypeKind::TensorType;
    return of_tensors ? ArgumentKind::kOptionalTensorList : ArgumentKind::kOther;
  }
  const ArgumentKind kind = kind_of(element);
  for (const ArgumentKind list : {ArgumentKind::kTensorList, ArgumentKind::kIntList,
                                  ArgumentKind::kFloatList, ArgumentKind::kBoolList}) {
    if (element_kind(list) == kind) return list;
  }
  return ArgumentKind::kOther;
}

}  // namespace

c10::TypePtr without_optional(c10::TypePtr type) {
  const auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType() : type;
}

ArgumentKind kind_of(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return ArgumentKind::kTensor;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return ArgumentKind::kInt;
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
      return ArgumentKind::kFloat;
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
      return ArgumentKind::kBool;
    case c10::TypeKind::NumberType:
      return ArgumentKind::kNumber;
    case c10::TypeKind::ComplexType:
      return ArgumentKind::kComplex;
    case c10::TypeKind::StringType:
      return ArgumentKind::kString;
    case c10::TypeKind::ScalarTypeType:
      return ArgumentKind::kDtype;
    case c10::TypeKind::DeviceObjType:
      return ArgumentKind::kDevice;
    case c10::TypeKind::LayoutType:
      return ArgumentKind::kLayout;
    case c10::TypeKind::MemoryFormatType:
      return ArgumentKind::kMemoryFormat;
    case c10::TypeKind::GeneratorType:
      return ArgumentKind::kGenerator;
    case c10::TypeKind::ListType:
      return list_kind_of(*type.expectRef<c10::ListType>().getElementType());
    default:
      return ArgumentKind::kOther;
  }
}

ArgumentKind element_kind(ArgumentKind kind) {
  switch (kind) {
    case ArgumentKind::kTensorList:
    case ArgumentKind::kOptionalTensorList:
      return ArgumentKind::kTensor;
    case ArgumentKind::kIntList:
      return ArgumentKind::kInt;
    case ArgumentKind::kFloatList:
      return ArgumentKind::kFloat;
    case ArgumentKind::kBoolList:
      return ArgumentKind::kBool;
    default:
      return kind;
  }
}

Argument::Argument(const c10::Argument& declared)
    : name(declared.name()),
      interned_name(PyUnicode_InternFromString(name.c_str())),
      default_value(declared.default_value()),
      kind(kind_of(*without_optional(declared.real_type()))),
      optional(declared.real_type()->kind() == c10::TypeKind::OptionalType),
      keyword_only(declared.kwarg_only()),
      mutated(writes(declared)),
      is_out(declared.is_out()) {
  if (interned_name == nullptr) raise_current_python_error();
}

std::vector<Argument> arguments_of(const c10::FunctionSchema& schema) {
  return {schema.arguments().begin(), schema.arguments().end()};
}

}  // namespace bringup::torch_ext
