// A pattern: a graph whose inputs stand for any value, and what its arguments mean.
//
// A node of type `ir::one_of` stands for any one of its arguments. An opaque argument of the graph
// that `open` knows stands for more than itself.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "engine/graph/graph.h"

namespace bringup::engine {

inline constexpr std::string_view kOneOf = "ir::one_of";

struct Pattern;

// A size in a shape: a number, a name, anything, or any number of sizes (at most once).
struct DimPattern {
  enum class Kind : uint8_t { kNumber, kName, kAny, kRest };
  Kind kind = Kind::kAny;
  int64_t number = 0;
  StringId name = kEmptyString;
};

// What a tensor must look like; what is left empty may be anything.
struct TensorConstraint {
  std::vector<StringId> dtypes;
  std::vector<uint32_t> ranks;
  std::optional<std::vector<DimPattern>> shape;
  std::vector<StringId> devices;  // "npu": every device of this type
};

// The kinds that an argument may be limited to, as Python calls them.
inline constexpr std::pair<const char*, Tag> kKindNames[] = {
    {"bool", Tag::kBool}, {"int", Tag::kInt},   {"float", Tag::kFloat}, {"str", Tag::kString},
    {"none", Tag::kNone}, {"list", Tag::kList}, {"tensor", Tag::kValue}};
constexpr uint32_t bit_of(Tag kind) { return 1u << static_cast<uint32_t>(kind); }

// Any argument; a name captures it and means the same argument wherever it stands.
struct AnyArgument {
  StringId name = kEmptyString;
  uint32_t kinds = 0;                              // of these kinds, a bit each; 0: of any
  std::optional<std::vector<ArgumentList>> among;  // one of these items
  double at_least = -std::numeric_limits<double>::infinity();
  double at_most = std::numeric_limits<double>::infinity();
  bool bounded() const;
};

// A number, or a constant of the graph.
struct ConstantArgument {
  struct Number {
    bool is_whole = true;
    int64_t whole = 0;
    double real = 0;
    double as_real() const { return is_whole ? static_cast<double>(whole) : real; }
  };
  StringId name = kEmptyString;
  std::vector<Number> values;                 // in row-major order; empty: any
  std::optional<std::vector<int64_t>> sizes;  // nothing: the one value is that of every element
  double atol = 0;
  double rtol = 0;
  // Whether a number is as expected: the same one, or near where a tolerance is given.
  bool fits(const Number& expected, const Number& got) const;
};

// A list of values, or what a list has besides its other items.
struct VariadicArgument {
  StringId name = kEmptyString;
  uint32_t at_least = 0;
  std::optional<uint32_t> at_most;
  std::shared_ptr<const Pattern> each;  // what every value must be the output of; null: anything
};

struct OpenArgument {
  std::variant<AnyArgument, ConstantArgument, VariadicArgument> what;
  std::string text;  // as reports show it
};

struct Pattern {
  std::shared_ptr<const Graph> graph;
  std::string name;
  // Whether constants with known data match equal ones only, and host arguments are compared.
  bool constant_values = true;
  bool attributes = true;
  std::unordered_map<uint32_t, OpenArgument> open;  // by the number of an opaque argument
  std::unordered_map<ValueId, TensorConstraint> constraints;
  std::unordered_map<NodeId, StringId> choices;  // names of `ir::one_of` nodes
  std::vector<ValueId> captured;
  std::unordered_map<StringId, ValueId> captured_names;
  // Of a pattern built from another: its values by the other's, which hooks ask for; or empty.
  std::unordered_map<ValueId, ValueId> known_as;
};

// Throws EngineError(kPass) for a pattern that cannot be meant.
void check_pattern(const Pattern& pattern);

}  // namespace bringup::engine
