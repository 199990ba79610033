#include "engine/run/decompose_targets.h"

#include <algorithm>

#include "engine/analysis/placement.h"

namespace bringup::engine {

void DecomposeTargets::start() {
  targets_.clear();
  following_ = 0;
  near_miss_.reset();
  std::string wanted;
  for (const std::string& type : op_types_) {
    const std::span<const NodeId> found = graph_.find(Strings::intern(type));
    targets_.insert(targets_.end(), found.begin(), found.end());
    wanted += (wanted.empty() ? "" : ", ") + type;
  }
  std::sort(targets_.begin(), targets_.end(),
            [&](NodeId one, NodeId other) { return graph_.is_before(one, other); });
  if (targets_.empty()) near_miss_ = {wanted, "", "the graph has no " + wanted, "", "", 0, 0};
}

bool DecomposeTargets::next() {
  while (following_ < targets_.size()) {
    node_ = targets_[following_++];
    if (graph_.alive(node_)) return true;
  }
  return false;
}

std::optional<std::string> DecomposeTargets::refusal(const AliasAnalysis& aliases) const {
  ReplacedPart part{{node_}, {}, {}};
  for (uint32_t index = 0; index < graph_.output_count(node_); ++index) {
    part.outputs.push_back({node_, index});
  }
  auto refusal = why_not_operators(graph_, part);
  if (!refusal) refusal = why_not_unwritten(graph_, part, aliases);
  return refusal ? std::optional(refusal->text(graph_)) : std::nullopt;
}

void DecomposeTargets::refuse(const std::string& reason) {
  if (near_miss_ || !graph_.alive(node_)) return;
  near_miss_ = {std::string(Strings::text(graph_.type(node_))),
                std::string(graph_.name_text(node_)),
                reason,
                "",
                "",
                0,
                0};
}

std::vector<ValueId> values_read(const Graph& graph, NodeId node) {
  std::vector<ValueId> inputs;
  for_each_value(graph.all_arguments(node), [&](ValueId value) {
    if (std::find(inputs.begin(), inputs.end(), value) == inputs.end()) inputs.push_back(value);
  });
  return inputs;
}

std::vector<ValueId> values_computed(const Graph& graph, NodeId node, size_t wanted) {
  std::vector<ValueId> all, used;
  for (uint32_t index = 0; index < graph.output_count(node); ++index) {
    all.push_back({node, index});
    if (!graph.users({node, index}).empty()) used.push_back({node, index});
  }
  return !used.empty() && used.size() == wanted ? used : all;
}

}  // namespace bringup::engine
