// What a single argument or tensor must be like: open arguments, constants, dtypes and shapes.
#pragma once

#include <string>

#include "engine/pattern/program.h"

namespace bringup::engine {

// Why something does not fit: the reason, what was wanted, what is there.
struct Refusal {
  std::string reason;
  std::string expected = {};
  std::string got = {};
};

// Compares arguments of a graph with what a program says about them.
class Predicates {
 public:
  // `objects`: what the opaque host arguments of the program are in `graph`; kNoSlot: nothing.
  Predicates(const Program& program, const Graph& graph, std::vector<uint32_t> objects);

  const Graph& graph() const { return graph_; }
  const Program& program() const { return program_; }

  // A host argument that is no nest. `any_kind`: 1 and 1.0 are one number, as for a Scalar.
  bool same_leaf(const Term& wanted, const Argument& found, bool any_kind) const;
  // Whether the kind of a call's numbers changes neither its results' dtype nor their values.
  bool takes_any_kind(NodeId reader) const;
  // A host argument that is no nest and a term, maybe open: whether it fits, names aside.
  bool fits_leaf(const Term& wanted, const Argument& found) const;
  // Terms without values or open arguments.
  bool same_plain(uint32_t wanted, ArgumentSpan found, bool any_kind = false) const;
  static bool is_plain(ArgumentSpan item);

  bool fits_any(const CompiledAny& wanted, ArgumentSpan found, bool any_kind) const;
  bool is_constant(const Argument& found) const;
  // Nothing when it fits.
  enum class Mismatch : uint8_t { kNone, kNoConstant, kUnknown, kShape, kValue };
  Mismatch mismatch(const CompiledConstant& wanted, const Argument& found) const;
  Refusal refusal(const CompiledConstant& wanted, const Argument& found) const;
  enum class DataMismatch : uint8_t { kNone, kUnknown, kForm, kElements };
  DataMismatch data_mismatch(const PatternNode& wanted, NodeId found) const;
  Refusal data_refusal(const Graph& pattern, const PatternNode& wanted, NodeId found) const;
  // `items` is a run of `count` items.
  static bool all_values(const Argument* items, uint32_t count);
  static bool fits_length(const VariadicArgument& wanted, uint32_t count);

 private:
  const Program& program_;
  const Graph& graph_;
  std::vector<uint32_t> objects_;
};

// The first element that is not as wanted. `readable` is false where the dtype is not read here.
std::optional<size_t> first_difference(const ConstantArgument& wanted, const ConstantData& found,
                                       bool& readable);
// An element as reports show it.
std::string element_text(const ConstantData& data, size_t index);
bool is_on(StringId device, StringId wanted);

}  // namespace bringup::engine
