// Whether what was matched can be replaced, and where its replacement would stand.
#include <algorithm>

#include "engine/analysis/placement.h"
#include "engine/match/matcher.h"
#include "engine/match/matcher_refusal.h"

namespace bringup::engine {
namespace {

std::vector<NodeId> in_order(const Graph& graph, const TakenNodes& taken) {
  std::vector<NodeId> nodes;
  for (const auto& [node, pattern_node] : taken.all()) nodes.push_back(node);
  std::sort(nodes.begin(), nodes.end(),
            [&](NodeId one, NodeId other) { return graph.is_before(one, other); });
  return nodes;
}

// What the replacement may read: inputs of the pattern, and values in captured arguments.
std::vector<ValueId> values_taken_in(const Bindings& bound) {
  std::vector<ValueId> values;
  for (const uint32_t frame : bound.frames()) {
    const SubPattern& sub = bound.sub(frame);
    for (uint32_t i = 0; i < sub.inputs.size(); ++i) {
      const ValueId value = bound.input(frame, i);
      if (value.node != kNoNode) values.push_back(value);
    }
    std::vector<uint32_t> slots(sub.names.size());
    for (uint32_t i = 0; i < slots.size(); ++i) slots[i] = i;
    std::sort(slots.begin(), slots.end(), [&](uint32_t one, uint32_t other) {
      return Strings::text(sub.names[one]) < Strings::text(sub.names[other]);
    });
    for (const uint32_t slot : slots) {
      const Captured& captured = bound.name(frame, slot);
      if (!captured.bound) continue;
      for_each_value(captured.span(), [&](ValueId value) { values.push_back(value); });
    }
  }
  std::vector<ValueId> unique;
  std::unordered_map<ValueId, bool> seen;
  for (const ValueId value : values) {
    if (seen.try_emplace(value, true).second) unique.push_back(value);
  }
  return unique;
}

}  // namespace

std::optional<PlacedMatch> Matcher::accept() {
  ReplacedPart part{in_order(graph_, bound_.taken()), values_taken_in(bound_), {}};
  for (const uint32_t term : program_->root().outputs) {
    part.outputs.push_back(*bound_.resolve(0, term));
  }
  if (!is_computed_inside(part) || !passes(why_not_closed(graph_, part)) ||
      !is_ordered_as_stated(part) || !passes(why_not_unwritten(graph_, part, aliases_))) {
    return std::nullopt;
  }
  auto found = stand(graph_, part, aliases_);
  if (auto* refusal = std::get_if<PlacementRefusal>(&found)) {
    passes(std::move(*refusal));
    return std::nullopt;
  }
  auto& place = std::get<Placement>(found);
  return PlacedMatch{&bound_, place.before, std::move(place.hoist), std::move(part.nodes)};
}

// Whether matched nodes compute all outputs of the pattern: an input that it returns is none.
bool Matcher::is_computed_inside(const ReplacedPart& part) {
  for (const ValueId value : part.outputs) {
    if (std::find(part.nodes.begin(), part.nodes.end(), value.node) != part.nodes.end()) continue;
    refuse_with(value.node, [] { return Refusal{kReturnsInput}; });
    return false;
  }
  return true;
}

bool Matcher::passes(const std::optional<PlacementRefusal>& refusal) {
  if (refusal) refuse_with(refusal->node, [&] { return Refusal{refusal->text(graph_)}; });
  return !refusal;
}

}  // namespace bringup::engine
