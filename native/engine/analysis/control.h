// Control edges between a part of a graph and the rest of it.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/graph/graph.h"

namespace bringup::engine {

// The nodes outside whose control edges lead into `part`; each once, in the order of the part.
std::vector<NodeId> run_before(const Graph& graph, std::span<const NodeId> part);
// Likewise those that a control edge lets run after one.
std::vector<NodeId> run_after(const Graph& graph, std::span<const NodeId> part);

// Whether `node` reads, through nodes that `is_inside` lets pass, what `source` computes.
bool reads_through(const Graph& graph, NodeId node, NodeId source,
                   const std::function<bool(NodeId)>& is_inside);

// What takes the place of a part: its nodes, and what readers of each output will read.
struct Successor {
  std::span<const NodeId> made;
  std::span<const ValueId> outputs;
  std::span<const ValueId> results;
};

// Lets new calls run after what ran before a node of `part`, and before what ran after one. What
// reads an output that no new call computes runs after the former too. The readers still read
// `part`.
void move_control_edges(Graph& graph, std::span<const NodeId> part, const Successor& successor);

// "'a', 'b'"; "none" when there are no nodes.
std::string names_text(const Graph& graph, std::span<const NodeId> nodes);

}  // namespace bringup::engine
