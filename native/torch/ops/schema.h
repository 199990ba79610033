// The arguments and returns of a kernel operator, as its schema declares them and the kernel ABI
// carries them.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace bringup::torch_ext {

// Inputs and outputs of one operator together. Frames live on the stack and are sized by it.
constexpr int kMaxArguments = 64;

enum class ArgumentKind : uint8_t {
  kTensor,
  kTensorList,
  kInt,
  kFloat,
  kBool,
  kString,
  kDtype,
  kIntList,
  kFloatList,
  kBoolList,
};

// The kind under its schema name ("Tensor", "int[]", "ScalarType", ...). Raises SchemaError for any
// other.
ArgumentKind argument_kind(std::string_view schema_type);

struct Argument {
  std::string name;
  PyObject* interned_name = nullptr;  // lives as long as the interpreter
  PyObject* default_value = nullptr;  // owned; null = required
  ArgumentKind kind = ArgumentKind::kTensor;
  bool optional = false;  // None is allowed
  bool keyword_only = false;
  bool mutated = false;

  bool holds_tensors() const {
    return kind == ArgumentKind::kTensor || kind == ArgumentKind::kTensorList;
  }
};

}  // namespace bringup::torch_ext
