// The edits a graph knows. Each can be undone, and repeated on a mirrored graph.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "engine/graph/argument.h"

namespace bringup::engine {

class Graph;

// Arguments kept by a graph: `count` items at the top, then one dict of keyword arguments or none.
struct ArgumentRange {
  uint32_t first = 0;
  uint32_t extent = 0;          // of the items at the top, nests included
  uint32_t keyword_extent = 0;  // 0: no keyword arguments
  uint32_t count = 0;
};

enum class EditKind : uint8_t {
  kInsert,     // `node` stands before `before`, with the arguments `now`
  kErase,      // `node`, whose arguments were `old`, stood before `before`
  kMove,       // `node` stands before `before`; it stood before `origin`
  kRewire,     // the arguments of `node` were `old`, are `now`
  kControl,    // the control inputs of `node` were `old`, are `now` (values of output 0)
  kAttribute,  // the attribute `name` of `node` was `old`, is `now`; no item: it is absent
  kSubgraph,   // the subgraph `name` of `node` likewise; a number in the graph's list
};

struct Edit {
  EditKind kind = EditKind::kInsert;
  NodeId node = kNoNode;
  NodeId before = kNoNode;
  NodeId origin = kNoNode;
  StringId name = kNoString;
  ArgumentRange old;
  ArgumentRange now;
};

// Repeats edits that stay on what the graph mirrors; an exception undoes them.
using Commit = std::function<void(Graph& graph, std::span<const Edit> edits)>;

}  // namespace bringup::engine
