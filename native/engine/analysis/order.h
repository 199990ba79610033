// Topological order: keeping a graph in an order in which it can run, or saying why there is none.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "engine/analysis/alias_analysis.h"
#include "engine/graph/graph.h"

namespace bringup::engine {

// The nodes that must move so that all of `needed` ran before the node `before` runs, in order; or
// the reason why it cannot be done: a cycle through `before` or a call of `blocked` (sorted), or a
// node that may not be moved. Visits only what they depend on and stands after `before`.
std::variant<std::vector<NodeId>, std::string> hoist_plan(const Graph& graph,
                                                          std::vector<NodeId> needed, NodeId before,
                                                          std::span<const NodeId> blocked,
                                                          const AliasAnalysis& aliases);

struct OrderFailure {
  NodeId node;  // cannot have its inputs in time
  std::string reason;
};

// Moves late producers in front of their first reader; on failure moves stay: use a transaction.
std::optional<OrderFailure> topological_sort(Graph& graph);

// Throws EngineError(kPass) for a cycle of control edges in a sorted graph, which `what` names.
void check_has_no_cycle(Graph& graph, std::string_view what);

}  // namespace bringup::engine
