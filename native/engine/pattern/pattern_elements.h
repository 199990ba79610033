// What C code says about a pattern that a plain graph cannot say, and making a pattern of both.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/pattern/pattern.h"

namespace bringup::engine {

// The pieces that were made for one graph. A piece stands in the graph as an opaque object: those
// that have a handle from `kFirstPiece` on, arguments of kind ANY from `kFirstOpen` on.
inline constexpr uint32_t kFirstPiece = 0x80000000u;
inline constexpr uint32_t kFirstOpen = 0xc0000000u;

struct Pieces {
  std::vector<uint64_t> handles;  // by number
  std::unordered_map<uint32_t, OpenArgument> open;
  std::unordered_map<ValueId, TensorConstraint> constraints;
  std::unordered_map<NodeId, StringId> choices;

  // The new piece's handle.
  uint64_t add(OpenArgument piece);
  // Its number in the graph; EngineError(kInvalid) when it belongs to another one.
  uint32_t number_of(uint64_t handle) const;
  // 0 for a number that is none of these.
  uint64_t handle_of(uint32_t number) const;
};

inline bool is_piece(const Argument& argument) {
  return argument.tag == Tag::kOpaque && argument.id >= kFirstPiece;
}
inline bool is_open(const Argument& argument) {
  return argument.tag == Tag::kOpaque && argument.id >= kFirstOpen;
}
inline StringId open_name(const Argument& argument) { return argument.id - kFirstOpen; }

// An alternative in a pattern's graph: a node that stands for any one of its arguments.
const Operator* one_of_operator();

// In a replacement, a value of the graph being rewritten: arguments say which of which graph.
const Operator* outer_operator();
void put_outer(ArgumentList& list, const Graph& graph, ValueId value);
// What it stands for in `graph`; EngineError(kPass) when that is another graph or does not live.
ValueId outer_value(const Graph& replacement, NodeId outer, const Graph& graph);

// Texts of pieces, as reports show them.
std::string text_of(const Graph& graph, const AnyArgument& piece);
std::string text_of(const ConstantArgument& piece);
std::string text_of(const VariadicArgument& piece);

// Throws EngineError(kPass) naming what a graph has that only patterns may have.
void check_has_no_pieces(const Graph& graph, std::string_view what);
// The same for what only replacements may have.
void check_has_no_outer(const Graph& graph, std::string_view what);

// Throws EngineError(kInvalid) when a pattern gives this name to something else than a capture.
void check_name_is_free(const Pattern& pattern, StringId name);

// The pattern that a graph and its pieces make. Throws EngineError when it cannot be meant.
std::shared_ptr<Pattern> make_pattern(std::shared_ptr<const Graph> graph, const Pieces& pieces,
                                      std::string_view name);

}  // namespace bringup::engine
