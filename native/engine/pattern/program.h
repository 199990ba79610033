// A pattern made ready for matching: flat, names and values as slots; read by any thread.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/pattern/pattern.h"

namespace bringup::engine {

inline constexpr uint32_t kNoSlot = UINT32_MAX;

// One argument of a pattern's node, in prefix form like Argument.
struct Term {
  enum class Kind : uint8_t { kHost, kNest, kInput, kNode, kChoice, kAny, kConstant, kVariadic };
  Kind kind = Kind::kHost;
  bool plain = true;        // holds neither values nor open arguments
  bool is_scalar = false;   // a number that an operator takes as an integer or a float
  uint32_t extent = 0;      // how many terms follow that belong to this one
  uint32_t slot = kNoSlot;  // of the input, node or choice; the number of the open argument;
                            // of an opaque host argument: which of Program::objects it is
  uint32_t index = 0;       // kNode: which output
  uint32_t rest = kNoSlot;  // kNest: which item is a list of open length
  Argument host;            // kHost: the argument; kNest: its tag and count
  ValueId value;            // kInput, kNode, kChoice: in the pattern's graph
  bool is_value() const { return kind >= Kind::kInput && kind <= Kind::kChoice; }
};

// A name as seen from a sub-pattern: so many parents up, this slot of their table.
struct NamePlace {
  uint32_t hops = 0;
  uint32_t slot = kNoSlot;  // kNoSlot: no name
};

struct TermRange {
  uint32_t first = 0;
  uint32_t end = 0;
};

struct PatternNode {
  NodeId id = kNoNode;
  StringId type = kEmptyString;
  uint32_t output_count = 0;
  uint32_t argument_count = 0;
  TermRange arguments;
  TermRange keywords;            // empty, or one dict
  std::vector<uint32_t> inputs;  // the terms that are values, in order
  bool is_constant = false;
  bool is_constrained = false;  // an output is
  const ConstantData* data = nullptr;
};

struct PatternChoice {
  NodeId id = kNoNode;
  std::vector<uint32_t> alternatives;  // terms
};

struct CompiledAny {
  const AnyArgument* what = nullptr;
  const std::string* text = nullptr;
  NamePlace name;
  std::vector<uint32_t> among;  // terms
};

struct CompiledConstant {
  const ConstantArgument* what = nullptr;
  const std::string* text = nullptr;
  NamePlace name;
};

struct CompiledVariadic {
  const VariadicArgument* what = nullptr;
  const std::string* text = nullptr;
  NamePlace name;           // without `each`
  uint32_t list = kNoSlot;  // with `each`: slot in this sub-pattern
  uint32_t each = kNoSlot;  // number of the sub-pattern
};

struct CompiledConstraint {
  const TensorConstraint* what = nullptr;
  std::vector<NamePlace> names;  // one for each size in the shape; only those of names are set
};

// A control edge of a pattern: from a node or an input, to a node.
struct PatternEdge {
  bool from_input = false;
  uint32_t source = kNoSlot;
  uint32_t target = kNoSlot;
};

// A pattern, or what every item of one of its lists must be.
struct SubPattern {
  const Pattern* pattern = nullptr;
  uint32_t parent = kNoSlot;
  uint32_t first_node = 0;  // of all nodes of the program
  std::vector<PatternNode> nodes;
  std::vector<PatternChoice> choices;
  std::vector<PatternEdge> edges;
  std::vector<ValueId> inputs;
  std::vector<uint32_t> outputs;  // terms
  std::vector<StringId> names, sizes, lists;
  std::unordered_map<ValueId, CompiledConstraint> constraints;
  const CompiledConstraint* constraint(ValueId value) const {
    if (constraints.empty()) return nullptr;
    const auto found = constraints.find(value);
    return found == constraints.end() ? nullptr : &found->second;
  }
};

struct Decision {
  uint32_t choice = 0;
  uint32_t alternative = 0;
};

// A node that may compute the first output, and the decisions that make it the one.
struct Anchor {
  std::vector<Decision> decisions;
  uint32_t node = 0;
  // For each argument: how many nodes can be bound by the time that it turns out not to fit.
  std::vector<uint32_t> reached;
};

class Program {
 public:
  // Throws EngineError(kPass) for a pattern that cannot be meant.
  static std::shared_ptr<const Program> compile(std::shared_ptr<const Pattern> pattern);

  const Pattern& pattern() const { return *pattern_; }
  const std::vector<SubPattern>& subs() const { return subs_; }
  const SubPattern& root() const { return subs_.front(); }
  const Term& term(uint32_t index) const { return terms_[index]; }
  const CompiledAny& any(const Term& term) const { return any_[term.slot]; }
  const CompiledConstant& constant(const Term& term) const { return constants_[term.slot]; }
  const CompiledVariadic& variadic(const Term& term) const { return variadics_[term.slot]; }
  const std::vector<Anchor>& anchors() const { return anchors_; }
  // The types of nodes that may compute the first output, the preferred one first.
  const std::vector<StringId>& anchor_types() const { return anchor_types_; }
  // The nodes that every match has.
  const std::vector<uint32_t>& required() const { return required_; }
  // The nodes of the pattern itself behind terms of it, as far as `enter` lets through.
  std::vector<uint32_t> nodes_behind(std::span<const uint32_t> terms, bool through_choices,
                                     const std::function<bool(uint32_t)>& enter) const;
  uint32_t size() const { return static_cast<uint32_t>(root().nodes.size()); }
  // Opaque host arguments of the pattern's graphs; what they are in another graph its host knows.
  struct Object {
    const Graph* graph;
    uint32_t number;
  };
  const std::vector<Object>& objects() const { return objects_; }

 private:
  friend class Compiler;
  std::shared_ptr<const Pattern> pattern_;
  std::vector<SubPattern> subs_;
  std::vector<Term> terms_;
  std::vector<CompiledAny> any_;
  std::vector<CompiledConstant> constants_;
  std::vector<CompiledVariadic> variadics_;
  std::vector<Anchor> anchors_;
  std::vector<StringId> anchor_types_;
  std::vector<uint32_t> required_;
  std::vector<Object> objects_;
};

}  // namespace bringup::engine
