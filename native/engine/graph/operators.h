// What an operator is: its schema, and what a call does besides computing its outputs.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/util/strings.h"

namespace bringup::engine {

struct Parameter {
  StringId name = kEmptyString;
  StringId type = kEmptyString;  // as the schema writes it
  friend bool operator==(const Parameter&, const Parameter&) = default;
};

inline constexpr int32_t kOutputsDependOnCall = -1;
inline constexpr int32_t kAlwaysCommutes = -1;

struct Operator {
  StringId type = kEmptyString;  // "aten::add.Tensor", "ir::input", "ir::constant", "ir::output"
  std::vector<Parameter> parameters;  // in schema order, as the arguments of a node are
  int32_t output_count = 1;           // kOutputsDependOnCall: a list
  std::vector<uint32_t> mutates;      // parameters that a call writes; ascending
  std::vector<uint32_t> aliases;      // parameters that an output may share memory with; ascending
  bool random = false;                // two calls with equal arguments may differ
  bool kept = false;                  // called for an effect other than writing memory
  bool opaque = false;                // the effects are unknown: nothing moves across a call
  bool commutes = false;              // the first two arguments may change places ...
  int32_t commutes_if_one = kAlwaysCommutes;  // ... if this argument is the number 1
  uint32_t number = 0;                        // dense, given by Operators::intern

  // A call writes memory, or its effects are unknown.
  bool has_effects() const { return !mutates.empty() || opaque; }
  // A call only computes its outputs: it may be moved, merged, folded or dropped.
  bool pure() const { return mutates.empty() && !random && !kept && !opaque; }
  std::optional<uint32_t> index_of(StringId parameter) const;
  // All facts but the number.
  friend bool operator==(const Operator& a, const Operator& b);
};

// All operators of the process. Any thread may call anything.
class Operators {
 public:
  // The one copy of these facts, which lives for ever; `number` of the argument is ignored.
  static const Operator* intern(Operator facts);
  // The operators of a graph's own nodes.
  static const Operator* input();
  static const Operator* constant();
  static const Operator* output();
};

}  // namespace bringup::engine
