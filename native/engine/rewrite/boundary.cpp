// The part of a graph that a Boundary describes: what is in it, and whether it can be replaced.
#include <algorithm>
#include <unordered_set>

#include "engine/analysis/control.h"
#include "engine/analysis/order.h"
#include "engine/rewrite/rewriter.h"
#include "engine/util/error.h"

namespace bringup::engine {
namespace {

using Values = std::vector<std::optional<ValueId>>;

void put(Values& values, uint32_t index, ValueId value, const char* what) {
  constexpr uint32_t kMost = 1 << 16;
  if (index >= kMost) {
    throw EngineError(ErrorCode::kInvalid, std::string("the boundary cannot have an ") + what +
                                               " number " + std::to_string(index));
  }
  if (index >= values.size()) values.resize(index + 1);
  if (values[index]) {
    throw EngineError(ErrorCode::kInvalid, std::string("the boundary has an ") + what + " number " +
                                               std::to_string(index) + " already");
  }
  values[index] = value;
}

std::vector<ValueId> complete(const Values& values, const char* what) {
  std::vector<ValueId> all;
  for (const std::optional<ValueId>& value : values) {
    if (!value) {
      throw EngineError(ErrorCode::kInvalid, std::string("the boundary has no ") + what +
                                                 " number " + std::to_string(all.size()));
    }
    all.push_back(*value);
  }
  return all;
}

bool contains(const Values& values, ValueId value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

void Boundary::add_input(uint32_t index, std::span<const Place> places) {
  std::optional<ValueId> entering;
  for (const Place& place : places) {
    std::vector<ValueId> reads;
    for_each_value(graph_.all_arguments(place.node),
                   [&](ValueId value) { reads.push_back(value); });
    if (!graph_.alive(place.node) || place.position >= reads.size()) {
      throw EngineError(ErrorCode::kInvalid, "node " + quoted(graph_.name_text(place.node)) +
                                                 " reads " + std::to_string(reads.size()) +
                                                 " values, there is no number " +
                                                 std::to_string(place.position));
    }
    const ValueId value = reads[place.position];
    if (entering && !(*entering == value)) {
      throw EngineError(ErrorCode::kInvalid,
                        "input " + std::to_string(index) + " of the boundary would be " +
                            quoted(graph_.name_text(entering->node)) + " and " +
                            quoted(graph_.name_text(value.node)) + ": one input, one value");
    }
    entering = value;
  }
  if (!entering) {
    throw EngineError(ErrorCode::kInvalid,
                      "input " + std::to_string(index) + " of the boundary enters nowhere");
  }
  put(inputs_, index, *entering, "input");
}

void Boundary::add_input_value(uint32_t index, ValueId value) {
  if (!graph_.has(value)) {
    throw EngineError(ErrorCode::kInvalid, "input " + std::to_string(index) +
                                               " of the boundary is no value of graph " +
                                               quoted(graph_.name()));
  }
  put(inputs_, index, value, "input");
}

void Boundary::add_output(uint32_t index, ValueId value) {
  if (!graph_.has(value)) {
    throw EngineError(ErrorCode::kInvalid, "output " + std::to_string(index) +
                                               " of the boundary is no value of graph " +
                                               quoted(graph_.name()));
  }
  if (contains(outputs_, value)) {
    throw EngineError(ErrorCode::kInvalid, quoted(graph_.name_text(value.node)) +
                                               " is an output of the boundary already");
  }
  put(outputs_, index, value, "output");
}

// Backwards from the outputs to the inputs; every node is visited once.
std::vector<NodeId> Boundary::inner_nodes() const {
  std::unordered_set<NodeId> seen;
  std::vector<NodeId> agenda;
  for (const std::optional<ValueId>& value : outputs_) agenda.push_back(value->node);
  while (!agenda.empty()) {
    const NodeId node = agenda.back();
    agenda.pop_back();
    if (!seen.insert(node).second) continue;
    if (&graph_.op(node) == Operators::input()) {
      throw EngineError(ErrorCode::kPass,
                        "the boundary is not closed: " + quoted(graph_.name_text(node)) +
                            " enters it, but is no input of it");
    }
    if (!graph_.pure(node)) {
      throw EngineError(
          ErrorCode::kPass,
          quoted(graph_.name_text(node)) + " writes memory or is random, so it is never replaced");
    }
    for_each_value(graph_.all_arguments(node), [&](ValueId value) {
      if (!contains(inputs_, value)) agenda.push_back(value.node);
    });
  }
  std::vector<NodeId> nodes(seen.begin(), seen.end());
  std::sort(nodes.begin(), nodes.end(),
            [&](NodeId one, NodeId other) { return graph_.is_before(one, other); });
  return nodes;
}

void Boundary::check_self_contained(std::span<const NodeId> nodes) const {
  const std::unordered_set<NodeId> inner(nodes.begin(), nodes.end());
  for (const NodeId node : nodes) {
    if (&graph_.op(node) == Operators::constant()) continue;  // it stays for those outside
    for (uint32_t index = 0; index < graph_.output_count(node); ++index) {
      if (contains(outputs_, ValueId{node, index})) continue;
      for (const NodeId user : graph_.sorted_users(ValueId{node, index})) {
        if (inner.contains(user)) continue;
        throw EngineError(ErrorCode::kPass,
                          "the boundary is not self-contained: output " + std::to_string(index) +
                              " of " + quoted(graph_.name_text(node)) + " is used outside by " +
                              quoted(graph_.name_text(user)) + "; make it an output");
      }
    }
  }
}

void Boundary::place(Part& part, const AliasAnalysis& aliases) const {
  const std::unordered_set<NodeId> inner(part.nodes.begin(), part.nodes.end());
  NodeId reader = kNoNode;
  for (const ValueId value : part.outputs) {
    for (const NodeId user : graph_.users(value)) {
      if (inner.contains(user)) continue;
      if (reader == kNoNode || graph_.is_before(user, reader)) reader = user;
    }
  }
  for (const NodeId user : run_after(graph_, part.nodes)) {
    if (reader == kNoNode || graph_.is_before(user, reader)) reader = user;
  }
  std::vector<NodeId> needed = run_before(graph_, part.nodes);
  for (const ValueId value : part.inputs) needed.push_back(value.node);
  const NodeId next = graph_.next(part.nodes.back());
  const bool is_early = reader != kNoNode && graph_.is_before(reader, next);
  const bool has_late_input = std::any_of(
      needed.begin(), needed.end(), [&](NodeId node) { return !graph_.is_before(node, next); });
  part.before = next;
  if (!is_early && !has_late_input) return;
  if (reader != kNoNode) part.before = reader;
  auto plan = hoist_plan(graph_, std::move(needed), part.before, part.nodes, aliases);
  if (const std::string* reason = std::get_if<std::string>(&plan)) {
    throw EngineError(ErrorCode::kPass, "the boundary cannot be replaced: " + *reason);
  }
  part.hoist = std::get<std::vector<NodeId>>(std::move(plan));
}

// What enters cannot be computed inside: the replacement would need itself.
void Boundary::check_inputs(const Part& part) const {
  const std::unordered_set<NodeId> inner(part.nodes.begin(), part.nodes.end());
  for (const ValueId value : part.inputs) {
    if (!inner.contains(value.node)) continue;
    throw EngineError(ErrorCode::kPass, "the input " + quoted(graph_.name_text(value.node)) +
                                            " of the boundary is computed inside of it");
  }
}

void Boundary::check_writers(const Part& part, const AliasAnalysis& aliases) const {
  for (const ValueId value : part.outputs) {
    if (const NodeId writer = aliases.writer_of(value); writer != kNoNode) {
      throw EngineError(ErrorCode::kPass, quoted(graph_.name_text(value.node)) + " is written by " +
                                              quoted(graph_.name_text(writer)) +
                                              ", so it is not replaced");
    }
  }
  for (const NodeId node : part.nodes) {
    const bool earlier = graph_.is_before(node, part.before);
    for_each_value(graph_.all_arguments(node), [&](ValueId value) {
      const NodeId writer =
          aliases.writer_between(value, earlier ? node : part.before, earlier ? part.before : node);
      if (writer == kNoNode) return;
      throw EngineError(ErrorCode::kPass, quoted(graph_.name_text(writer)) + " writes what " +
                                              quoted(graph_.name_text(node)) +
                                              " reads between it and the replacement");
    });
  }
}

Boundary::Part Boundary::resolve(const AliasAnalysis& aliases) const {
  Part part;
  part.inputs = complete(inputs_, "input");
  part.outputs = complete(outputs_, "output");
  if (part.outputs.empty()) throw EngineError(ErrorCode::kInvalid, "the boundary has no output");
  part.nodes = inner_nodes();
  check_inputs(part);
  check_self_contained(part.nodes);
  place(part, aliases);
  check_writers(part, aliases);
  return part;
}

}  // namespace bringup::engine
