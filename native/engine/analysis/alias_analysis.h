// Who shares memory with whom, and who writes it: what may not be moved across what.
#pragma once

#include <unordered_map>
#include <vector>

#include "engine/graph/graph.h"

namespace bringup::engine {

// The storage classes of a graph's values, and their writers; without any, one walk answers all.
// The graph must live longer; const functions may be called from several threads.
class AliasAnalysis {
 public:
  // `track_views`: know the storages of a graph without writers too.
  explicit AliasAnalysis(const Graph& graph, bool track_views = false);

  // Whether nothing in the graph is known to write memory.
  bool quiet() const { return quiet_; }
  // The node that stands for the storage of `value`, if views are tracked or not quiet.
  NodeId root(ValueId value) const { return find(value.node); }
  // A node from `first` on and before `last` that may write the memory of `value`, or kNoNode.
  NodeId writer_between(ValueId value, NodeId first, NodeId last) const;
  // Any node that may write the memory of `value`, wherever it stands, or kNoNode.
  NodeId writer_of(ValueId value) const;
  // `now` stands where `old` stood: from here on they count as one storage.
  void replaced(ValueId old, ValueId now);
  // Take one more node into account.
  void record(NodeId node);

 private:
  NodeId find(NodeId node) const;
  void join(NodeId one, NodeId other);
  const std::vector<NodeId>* writers_of(ValueId value) const;

  const Graph& graph_;
  bool quiet_ = true;
  std::vector<NodeId> above_;  // a union-find forest; nodes past its end stand for themselves
  std::unordered_map<NodeId, std::vector<NodeId>> writers_;  // by root
  std::vector<NodeId> barriers_;
};

}  // namespace bringup::engine
