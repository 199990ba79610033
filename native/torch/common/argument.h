// The arguments of an operator, read from its schema once.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <Python.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace bringup::torch_ext {

// Inputs and outputs of one kernel operator together. Frames live on the stack and are sized by it.
constexpr int kMaxArguments = 64;

enum class ArgumentKind : uint8_t {
  kTensor,
  kTensorList,
  kOptionalTensorList,
  kInt,
  kFloat,
  kBool,
  kNumber,  // Scalar
  kComplex,
  kString,
  kDtype,
  kDevice,
  kLayout,
  kMemoryFormat,
  kGenerator,
  kIntList,
  kFloatList,
  kBoolList,
  kOther,
};

// What an Optional is of; any other type is its own.
c10::TypePtr without_optional(c10::TypePtr type);
// Of a type without its Optional: a schema's real type, where dtypes and layouts are no ints.
ArgumentKind kind_of(const c10::Type& type);
// Of the elements of a list; any other kind is its own.
ArgumentKind element_kind(ArgumentKind kind);

struct Argument {
  // With the GIL: the name is interned.
  explicit Argument(const c10::Argument& declared);

  bool holds_tensors() const {
    return kind == ArgumentKind::kTensor || kind == ArgumentKind::kTensorList ||
           kind == ArgumentKind::kOptionalTensorList;
  }
  // A tensor that the operator reads.
  bool is_operand() const { return kind == ArgumentKind::kTensor && !is_out; }

  std::string name;
  PyObject* interned_name;  // lives as long as the interpreter
  std::optional<c10::IValue> default_value;
  ArgumentKind kind;
  bool optional;  // None is allowed
  bool keyword_only;
  bool mutated;
  bool is_out;  // written, and not read
};

std::vector<Argument> arguments_of(const c10::FunctionSchema& schema);

}  // namespace bringup::torch_ext
