// Whether what was matched can be taken out of the graph, and where its replacement would stand.
#include <algorithm>

#include "engine/analysis/control.h"
#include "engine/analysis/order.h"
#include "engine/graph/text.h"
#include "engine/match/matcher.h"
#include "engine/match/matcher_refusal.h"

namespace bringup::engine {
namespace {

// The first in graph order of the readers of a value that are not matched; kNoNode: none.
NodeId outside_reader(const Graph& graph, ValueId value, const NodeSet& matched) {
  NodeId first = kNoNode;
  for (const NodeId user : graph.users(value)) {
    if (matched.contains(user)) continue;
    if (first == kNoNode || graph.is_before(user, first)) first = user;
  }
  return first;
}

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

std::optional<Candidate> Matcher::accept() {
  Candidate found;
  found.bound = &bound_;
  found.nodes = in_order(graph_, bound_.taken());
  Part part{NodeSet(found.nodes), values_taken_in(bound_), {}};
  for (const uint32_t term : program_->root().outputs) {
    part.outputs.push_back(*bound_.resolve(0, term));
  }
  const bool fits = is_computed_inside(part) && is_read_inside(found.nodes, part) &&
                    is_fed_from_outside(part) && is_ordered_as_stated(found.nodes, part) &&
                    is_unwritten(part) && place(found, part) &&
                    may_run_at(found.before, found.nodes);
  return fits ? std::optional(std::move(found)) : std::nullopt;
}

// Whether every output of the pattern is computed by a matched node: an input of the pattern that
// it returns, always or because an optional part is absent, is not.
bool Matcher::is_computed_inside(const Part& part) {
  for (const ValueId value : part.outputs) {
    if (part.nodes.contains(value.node)) continue;
    refuse_with(value.node, [] { return Refusal{kReturnsInput}; });
    return false;
  }
  return true;
}

// Whether only matched nodes read what is not an output of the pattern.
bool Matcher::is_read_inside(std::span<const NodeId> nodes, const Part& part) {
  for (const NodeId node : nodes) {
    if (graph_.type(node) == Operators::constant()->type) continue;
    for (uint32_t i = 0; i < graph_.output_count(node); ++i) {
      const bool is_output = std::find(part.outputs.begin(), part.outputs.end(),
                                       ValueId{node, i}) != part.outputs.end();
      const NodeId outside = is_output ? kNoNode : outside_reader(graph_, {node, i}, part.nodes);
      if (outside == kNoNode) continue;
      refuse_with(node, [&] {
        return Refusal{
            concat({"its output ", std::to_string(i), " is used outside of the match by ",
                    quoted(graph_.name_text(outside)), "; make it an output of the pattern"})};
      });
      return false;
    }
  }
  return true;
}

// Whether nothing that the replacement reads goes away with the match.
bool Matcher::is_fed_from_outside(const Part& part) {
  for (const ValueId value : part.taken_in) {
    if (!part.nodes.contains(value.node)) continue;
    if (graph_.type(value.node) == Operators::constant()->type) continue;
    refuse_with(value.node, [] {
      return Refusal{"an input of the pattern would be computed inside the match"};
    });
    return false;
  }
  return true;
}

bool Matcher::is_unwritten(const Part& part) {
  for (const ValueId value : part.outputs) {
    const NodeId writer = aliases_.writer_of(value);
    if (writer == kNoNode) continue;
    refuse_with(value.node, [&] {
      return Refusal{concat({"its memory is written by ", quoted(graph_.name_text(writer)),
                             ", so it is not replaced"})};
    });
    return false;
  }
  return true;
}

// Where the replacement goes: behind the match, but in front of the first reader of an output, to
// which what it reads must be moved then. Control edges count as reads do.
bool Matcher::place(Candidate& found, const Part& part) {
  NodeId reader = kNoNode;
  const auto comes = [&](NodeId node) {
    if (node != kNoNode && (reader == kNoNode || graph_.is_before(node, reader))) reader = node;
  };
  for (const ValueId value : part.outputs) comes(outside_reader(graph_, value, part.nodes));
  for (const NodeId node : run_after(graph_, found.nodes)) comes(node);
  const NodeId last = found.nodes.back();
  if (reader == kNoNode || graph_.is_before(last, reader)) {
    found.before = graph_.next(last);
    return true;
  }
  found.before = reader;
  std::vector<NodeId> needed;
  for (const ValueId value : part.taken_in) needed.push_back(value.node);
  for (const NodeId node : run_before(graph_, found.nodes)) needed.push_back(node);
  auto plan = hoist_plan(graph_, std::move(needed), reader, part.nodes.all(), aliases_);
  if (auto* reason = std::get_if<std::string>(&plan)) {
    refuse_with(reader, [&] { return Refusal{*reason}; });
    return false;
  }
  found.hoist = std::get<std::vector<NodeId>>(std::move(plan));
  return true;
}

// Whether what the matched nodes read is unwritten between them and the replacement.
bool Matcher::may_run_at(NodeId before, std::span<const NodeId> nodes) {
  if (aliases_.quiet()) return true;
  for (const NodeId node : nodes) {
    const bool is_before = graph_.is_before(node, before);
    const NodeId first = is_before ? node : before;
    const NodeId last = is_before ? before : node;
    NodeId writer = kNoNode;
    for_each_value(graph_.all_arguments(node), [&](ValueId value) {
      if (writer == kNoNode) writer = aliases_.writer_between(value, first, last);
    });
    if (writer == kNoNode) continue;
    refuse_with(node, [&] {
      return Refusal{concat({quoted(graph_.name_text(writer)),
                             " writes what it reads between it and the replacement"})};
    });
    return false;
  }
  return true;
}

}  // namespace bringup::engine
