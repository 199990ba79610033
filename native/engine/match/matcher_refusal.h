// How a matcher words what it refuses. Inside of the matcher only.
#pragma once

#include "engine/match/matcher.h"

namespace bringup::engine {

// The one way to refuse a candidate; words are made only for the refusal that came furthest.
template <class Make>
void Matcher::refuse_with(NodeId node, Make&& make) {
  const uint32_t matched = bound_.root_nodes();
  if (near_miss_ && matched <= near_miss_->matched) return;
  Refusal refusal = make();
  near_miss_ = NearMiss{program_->pattern().name,
                        node == kNoNode ? std::string() : std::string(graph_.name_text(node)),
                        std::move(refusal.reason),
                        std::move(refusal.expected),
                        std::move(refusal.got),
                        matched,
                        program_->size()};
}

inline constexpr const char* kReturnsInput =
    "the pattern returns its own input here: only what an operator computes can be replaced";

std::string type_text(const Graph& graph, NodeId node);
// The types of a pattern's anchors.
std::string anchor_text(const Program& program);
// The types of some nodes.
std::string types_text(const Graph& graph, std::span<const NodeId> nodes);
// The types of the nodes that read a value.
std::string users_text(const Graph& graph, ValueId value);
std::string shape_pattern_text(const std::vector<DimPattern>& shape);
// "a or b"
std::string any_of_text(const std::vector<std::string>& choices);

}  // namespace bringup::engine
