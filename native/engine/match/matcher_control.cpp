// Control edges of a pattern: each must lead between what stands for its ends, once both are known.
#include <algorithm>

#include "engine/analysis/control.h"
#include "engine/graph/text.h"
#include "engine/match/matcher.h"
#include "engine/match/matcher_refusal.h"

namespace bringup::engine {

// Whether `found` may stand for a node or input, by the edges between it and what is bound.
bool Matcher::has_control_edges(uint32_t frame, bool is_input, uint32_t slot, NodeId found) {
  for (const PatternEdge& edge : bound_.sub(frame).edges) {
    if (!is_input && edge.target == slot) {
      const NodeId source = bound_source(frame, edge);
      if (source != kNoNode && !has_control_edge(source, found)) return false;
    } else if (edge.from_input == is_input && edge.source == slot) {
      const NodeId target = bound_.node(frame, edge.target);
      if (target != kNoNode && !has_control_edge(found, target)) return false;
    }
  }
  return true;
}

bool Matcher::has_control_edge(NodeId source, NodeId target) {
  if (graph_.has_control_edge(source, target)) return true;
  refuse_with(target, [&] {
    const NodeId wanted[] = {source};
    return Refusal{"a control edge is missing", concat("from ", names_text(graph_, wanted)),
                   concat("from ", names_text(graph_, graph_.control_inputs(target)))};
  });
  return false;
}

// Whether an edge between matched nodes is one of the pattern, or says no more than what they read:
// otherwise what must run after the one would no longer run after what the other waits for.
bool Matcher::is_ordered_as_stated(const ReplacedPart& part) {
  if (!graph_.has_control_edges()) return true;
  const NodeSet inside(part.nodes);
  const auto is_inside = [&](NodeId node) { return inside.contains(node); };
  for (const NodeId node : part.nodes) {
    for (const NodeId source : graph_.control_inputs(node)) {
      if (!is_inside(source) || is_stated(source, node)) continue;
      if (reads_through(graph_, node, source, is_inside)) continue;
      refuse_with(node, [&] {
        return Refusal{concat("it runs after ", in_quotes(graph_.name_text(source)),
                              " by a control edge that the pattern does not have")};
      });
      return false;
    }
  }
  return true;
}

bool Matcher::is_stated(NodeId source, NodeId target) const {
  for (const uint32_t frame : bound_.frames()) {
    for (const PatternEdge& edge : bound_.sub(frame).edges) {
      if (bound_source(frame, edge) == source && bound_.node(frame, edge.target) == target) {
        return true;
      }
    }
  }
  return false;
}

// The first edge of an unbound node of the pattern itself whose other end is bound; null: none.
const PatternEdge* Matcher::edge_to_known(uint32_t slot) const {
  for (const PatternEdge& edge : program_->root().edges) {
    const bool comes = edge.target == slot && bound_source(0, edge) != kNoNode;
    const bool leaves =
        !edge.from_input && edge.source == slot && bound_.node(0, edge.target) != kNoNode;
    if (comes || leaves) return &edge;
  }
  return nullptr;
}

std::vector<NodeId> Matcher::linked_targets(uint32_t slot) {
  const PatternEdge& edge = *edge_to_known(slot);
  const bool comes = edge.target == slot;
  const NodeId known = comes ? bound_source(0, edge) : bound_.node(0, edge.target);
  const StringId type = program_->root().nodes[slot].type;
  std::vector<NodeId> linked = comes ? graph_.control_users(known) : graph_.control_inputs(known);
  std::sort(linked.begin(), linked.end(),
            [&](NodeId one, NodeId other) { return graph_.is_before(one, other); });
  std::vector<NodeId> fitting;
  for (const NodeId node : linked) {
    if (graph_.type(node) == type) fitting.push_back(node);
  }
  if (fitting.empty()) {
    refuse_with(known, [&] {
      return Refusal{concat("no control edge ", comes ? "leads from" : "comes to",
                            " it as the pattern has one"),
                     std::string(Strings::text(type)), types_text(graph_, linked)};
    });
  }
  return fitting;
}

NodeId Matcher::bound_source(uint32_t frame, const PatternEdge& edge) const {
  return edge.from_input ? bound_.input(frame, edge.source).node : bound_.node(frame, edge.source);
}

}  // namespace bringup::engine
