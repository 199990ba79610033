// What values `update` may give a host argument, by its type in the schema.
#pragma once

#include <ATen/core/function_schema.h>
#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "torch/common/argument.h"
#include "torch/graphs/node.h"

namespace bringup::torch_ext::graphs {

class SlotType {
 public:
  // None for an argument that no update writes: a generator, a device, ...
  static std::optional<SlotType> of(const c10::Argument& argument);

  // "int", "float?", "bool[]", "dtype", "number"
  std::string name() const;
  // "an int", "a list of bool or None"
  std::string words() const;
  // Also a list of tensors.
  bool is_tensor() const { return kind_ == ArgumentKind::kTensor; }

  // The value for the dispatcher, or nothing when it is no such value. Lists come from lists,
  // tuples, ranges and what has tolist(). With the GIL; may run Python code.
  std::optional<HostValue> from_python(nanobind::handle value) const;
  nanobind::object to_python(const HostValue& value) const;

 private:
  SlotType(ArgumentKind kind, bool optional)
      : kind_(element_kind(kind)), is_list_(kind_ != kind), optional_(optional) {}
  std::optional<HostValue> element(nanobind::handle value) const;
  nanobind::object element_to_python(const c10::IValue& value) const;
  const char* word() const;

  ArgumentKind kind_;  // of a list, its elements
  bool is_list_;
  bool optional_;
};

}  // namespace bringup::torch_ext::graphs
