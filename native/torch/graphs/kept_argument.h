// How an argument of a C++ type is recognised in a schema, kept, and passed.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/Scalar.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bringup::torch_ext::graphs {

template <class Type>
struct Kept;

template <class Type, c10::TypeKind kKind, bool (c10::IValue::*is_kind)() const>
struct KeptAs {
  using Value = Type;
  static bool takes(const c10::Argument& argument, const c10::IValue& value) {
    return argument.real_type()->kind() == kKind && (value.*is_kind)();
  }
  static Value from(const c10::IValue& value) { return value.to<Value>(); }
  static const Value& pass(const Value& value) { return value; }
};

template <class Type, c10::TypeKind kKind, bool (c10::IValue::*is_kind)() const>
struct KeptAsOptional {
  using Value = std::optional<Type>;
  static bool takes(const c10::Argument& argument, const c10::IValue& value) {
    const auto optional = argument.real_type()->cast<c10::OptionalType>();
    return optional != nullptr && optional->getElementType()->kind() == kKind &&
           (value.isNone() || (value.*is_kind)());
  }
  static Value from(const c10::IValue& value) {
    return value.isNone() ? std::nullopt : std::optional(value.to<Type>());
  }
  static const Value& pass(const Value& value) { return value; }
};

using c10::IValue;
using c10::TypeKind;
template <>
struct Kept<const at::Tensor&> : KeptAs<at::Tensor, TypeKind::TensorType, &IValue::isTensor> {};
template <>
struct Kept<const at::Scalar&> : KeptAs<at::Scalar, TypeKind::NumberType, &IValue::isScalar> {};
template <>
struct Kept<int64_t> : KeptAs<int64_t, TypeKind::IntType, &IValue::isInt> {};
template <>
struct Kept<bool> : KeptAs<bool, TypeKind::BoolType, &IValue::isBool> {};
template <>
struct Kept<std::string_view> : KeptAs<std::string, TypeKind::StringType, &IValue::isString> {};
template <>
struct Kept<at::ScalarType> : KeptAs<at::ScalarType, TypeKind::ScalarTypeType, &IValue::isInt> {};
template <>
struct Kept<at::IntArrayRef>
    : KeptAs<std::vector<int64_t>, TypeKind::ListType, &IValue::isIntList> {};
template <>
struct Kept<std::optional<at::ScalarType>>
    : KeptAsOptional<at::ScalarType, TypeKind::ScalarTypeType, &IValue::isInt> {};
template <>
struct Kept<std::optional<int64_t>> : KeptAsOptional<int64_t, TypeKind::IntType, &IValue::isInt> {};
template <>
struct Kept<std::optional<std::string_view>>
    : KeptAsOptional<std::string, TypeKind::StringType, &IValue::isString> {
  static std::optional<std::string_view> pass(const Value& value) { return value; }
};
template <>
struct Kept<at::OptionalScalarRef>
    : KeptAsOptional<at::Scalar, TypeKind::NumberType, &IValue::isScalar> {
  static at::OptionalScalarRef pass(const Value& value) {
    return value ? at::OptionalScalarRef(*value) : at::OptionalScalarRef();
  }
};
template <>
struct Kept<at::OptionalTensorRef>
    : KeptAsOptional<at::Tensor, TypeKind::TensorType, &IValue::isTensor> {
  static at::OptionalTensorRef pass(const Value& value) {
    return value ? at::OptionalTensorRef(*value) : at::OptionalTensorRef();
  }
};
template <>
struct Kept<at::OptionalIntArrayRef>
    : KeptAsOptional<std::vector<int64_t>, TypeKind::ListType, &IValue::isIntList> {
  static at::OptionalIntArrayRef pass(const Value& value) {
    if (!value) return std::nullopt;
    return c10::IntArrayRef(*value);
  }
};

}  // namespace bringup::torch_ext::graphs
