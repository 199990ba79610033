// The part of a graph that a Boundary describes: what is in it, and whether it can be replaced.
#include <algorithm>
#include <unordered_set>

#include "engine/analysis/placement.h"
#include "engine/rewrite/rewriter.h"
#include "engine/util/error.h"

namespace bringup::engine {
namespace {

using Values = std::vector<std::optional<ValueId>>;

void put(Values& values, uint32_t index, ValueId value, const char* what) {
  constexpr uint32_t kMost = 1 << 16;
  if (index >= kMost) {
    throw_error(ErrorCode::kInvalid, "the boundary cannot have an ", what, " number ", index);
  }
  if (index >= values.size()) values.resize(index + 1);
  if (values[index]) {
    throw_error(ErrorCode::kInvalid, "the boundary has an ", what, " number ", index, " already");
  }
  values[index] = value;
}

std::vector<ValueId> complete(const Values& values, const char* what) {
  std::vector<ValueId> all;
  for (const std::optional<ValueId>& value : values) {
    if (!value) {
      throw_error(ErrorCode::kInvalid, "the boundary has no ", what, " number ", all.size());
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
      throw_error(ErrorCode::kInvalid, "node ", in_quotes(graph_.name_text(place.node)), " reads ",
                  reads.size(), " values, there is no number ", place.position);
    }
    const ValueId value = reads[place.position];
    if (entering && !(*entering == value)) {
      throw_error(ErrorCode::kInvalid, "input ", index, " of the boundary would be ",
                  in_quotes(graph_.name_text(entering->node)), " and ",
                  in_quotes(graph_.name_text(value.node)), ": one input, one value");
    }
    entering = value;
  }
  if (!entering) {
    throw_error(ErrorCode::kInvalid, "input ", index, " of the boundary enters nowhere");
  }
  put(inputs_, index, *entering, "input");
}

void Boundary::add_input_value(uint32_t index, ValueId value) {
  if (!graph_.has(value)) {
    throw_error(ErrorCode::kInvalid, "input ", index, " of the boundary is no value of graph ",
                in_quotes(graph_.name()));
  }
  put(inputs_, index, value, "input");
}

void Boundary::add_output(uint32_t index, ValueId value) {
  if (!graph_.has(value)) {
    throw_error(ErrorCode::kInvalid, "output ", index, " of the boundary is no value of graph ",
                in_quotes(graph_.name()));
  }
  if (contains(outputs_, value)) {
    throw_error(ErrorCode::kInvalid, in_quotes(graph_.name_text(value.node)),
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
      throw_error(ErrorCode::kPass,
                  "the boundary is not closed: ", in_quotes(graph_.name_text(node)),
                  " enters it, but is no input of it");
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

Boundary::Part Boundary::resolve(const AliasAnalysis& aliases) const {
  ReplacedPart part;
  part.inputs = complete(inputs_, "input");
  part.outputs = complete(outputs_, "output");
  if (part.outputs.empty()) throw_error(ErrorCode::kInvalid, "the boundary has no output");
  part.nodes = inner_nodes();
  auto found = place(graph_, part, aliases);
  if (const auto* refusal = std::get_if<PlacementRefusal>(&found)) {
    throw_error(ErrorCode::kPass, "the boundary cannot be replaced, because of ",
                in_quotes(graph_.name_text(refusal->node)), ": ", refusal->text(graph_));
  }
  auto& place = std::get<Placement>(found);
  return {std::move(part.inputs), std::move(part.outputs), std::move(part.nodes), place.before,
          std::move(place.hoist)};
}

}  // namespace bringup::engine
