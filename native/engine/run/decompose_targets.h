// The nodes that a decompose pass may replace in one graph.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/analysis/alias_analysis.h"
#include "engine/graph/graph.h"
#include "engine/match/near_miss.h"

namespace bringup::engine {

class DecomposeTargets {
 public:
  // Graph and types must live longer.
  DecomposeTargets(const Graph& graph, std::span<const std::string> op_types)
      : graph_(graph), op_types_(op_types) {}

  // Takes the nodes of the types that are there now, in graph order.
  void start();
  // Goes to the next one that is still there.
  bool next();
  NodeId node() const { return node_; }
  // Why the node is not replaced, whatever the pass says.
  std::optional<std::string> refusal(const AliasAnalysis& aliases) const;
  // Notes that the node was left alone.
  void refuse(const std::string& reason);
  // What came closest since `start`.
  const std::optional<NearMiss>& near_miss() const { return near_miss_; }

 private:
  const Graph& graph_;
  std::span<const std::string> op_types_;
  std::vector<NodeId> targets_;
  size_t following_ = 0;
  NodeId node_ = kNoNode;
  std::optional<NearMiss> near_miss_;
};

// What the inputs of a node's replacement stand for: every value that it reads, each once.
std::vector<ValueId> values_read(const Graph& graph, NodeId node);
// What `wanted` outputs of a node's replacement stand for: its outputs that are read, if they are
// as many; else all.
std::vector<ValueId> values_computed(const Graph& graph, NodeId node, size_t wanted);

}  // namespace bringup::engine
