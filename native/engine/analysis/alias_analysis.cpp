#include "engine/analysis/alias_analysis.h"

#include <utility>

namespace bringup::engine {

AliasAnalysis::AliasAnalysis(const Graph& graph, bool track_views) : graph_(graph) {
  quiet_ = !graph.has_effects();
  if (quiet_ && !track_views) return;
  for (NodeId node = graph.first(); node != kNoNode; node = graph.next(node)) record(node);
}

void AliasAnalysis::record(NodeId node) {
  const Operator& op = graph_.op(node);
  if (op.has_effects()) quiet_ = false;
  const ArgumentSpan arguments = graph_.arguments(node);
  const auto join_with = [&](uint32_t index) {
    for_each_value(item(arguments, index), [&](ValueId value) { join(value.node, node); });
  };
  for (const uint32_t index : op.aliases) join_with(index);
  for (const uint32_t index : op.mutates) join_with(index);
  for (const uint32_t index : op.mutates) {
    for_each_value(item(arguments, index),
                   [&](ValueId value) { writers_[find(value.node)].push_back(node); });
  }
  if (op.opaque) barriers_.push_back(node);
}

// The storage of `other` becomes that of `one`, with all who write either.
void AliasAnalysis::join(NodeId one, NodeId other) {
  const NodeId root = find(one);
  const NodeId former = find(other);
  if (root == former) return;
  const NodeId last = root > former ? root : former;
  for (NodeId node = static_cast<NodeId>(above_.size()); node <= last; ++node) {
    above_.push_back(node);
  }
  above_[former] = root;
  const auto written = writers_.find(former);
  if (written == writers_.end()) return;
  std::vector<NodeId> moved = std::move(written->second);
  writers_.erase(written);
  std::vector<NodeId>& writers = writers_[root];
  writers.insert(writers.end(), moved.begin(), moved.end());
}

// Paths stay as they are: `find` may run in several threads, and views of views are few.
NodeId AliasAnalysis::find(NodeId node) const {
  while (node < above_.size() && above_[node] != node) node = above_[node];
  return node;
}

const std::vector<NodeId>* AliasAnalysis::writers_of(ValueId value) const {
  const auto found = writers_.find(find(value.node));
  return found == writers_.end() ? nullptr : &found->second;
}

NodeId AliasAnalysis::writer_between(ValueId value, NodeId first, NodeId last) const {
  if (quiet_) return kNoNode;
  const auto between = [&](const std::vector<NodeId>& nodes) {
    for (const NodeId node : nodes) {
      if (!graph_.alive(node)) continue;
      if (!graph_.is_before(node, first) && graph_.is_before(node, last)) return node;
    }
    return kNoNode;
  };
  if (const std::vector<NodeId>* writers = writers_of(value)) {
    const NodeId writer = between(*writers);
    if (writer != kNoNode) return writer;
  }
  return between(barriers_);
}

NodeId AliasAnalysis::writer_of(ValueId value) const {
  const std::vector<NodeId>* writers = quiet_ ? nullptr : writers_of(value);
  if (writers == nullptr) return kNoNode;
  for (const NodeId node : *writers) {
    if (graph_.alive(node)) return node;
  }
  return kNoNode;
}

void AliasAnalysis::replaced(ValueId old, ValueId now) {
  if (!quiet_) join(old.node, now.node);
}

}  // namespace bringup::engine
