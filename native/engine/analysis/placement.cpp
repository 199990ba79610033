#include "engine/analysis/placement.h"

#include "engine/analysis/control.h"
#include "engine/analysis/order.h"
#include "engine/graph/text.h"
#include "engine/util/error.h"

namespace bringup::engine {
namespace {

using Why = PlacementRefusal::Why;

bool is_constant(const Graph& graph, NodeId node) {
  return graph.type(node) == Operators::constant()->type;
}

// The first in graph order of the readers of a value that are not in the part; kNoNode: none.
NodeId outside_reader(const Graph& graph, ValueId value, const NodeSet& inside) {
  NodeId first = kNoNode;
  for (const NodeId user : graph.users(value)) {
    if (inside.contains(user)) continue;
    if (first == kNoNode || graph.is_before(user, first)) first = user;
  }
  return first;
}

std::optional<PlacementRefusal> why_not_at(const Graph& graph, const ReplacedPart& part,
                                           NodeId before, const AliasAnalysis& aliases) {
  if (aliases.quiet()) return std::nullopt;
  for (const NodeId node : part.nodes) {
    const bool is_before = graph.is_before(node, before);
    const NodeId first = is_before ? node : before;
    const NodeId last = is_before ? before : node;
    NodeId writer = kNoNode;
    for_each_value(graph.all_arguments(node), [&](ValueId value) {
      if (writer == kNoNode) writer = aliases.writer_between(value, first, last);
    });
    if (writer != kNoNode) return PlacementRefusal{Why::kWritesBetween, node, writer};
  }
  return std::nullopt;
}

}  // namespace

std::string PlacementRefusal::text(const Graph& graph) const {
  const auto name = [&] { return in_quotes(graph.name_text(other)); };
  switch (why) {
    case Why::kNoOperator:
      return "it is an input or the result of the graph, not an operator";
    case Why::kImpure:
      return "the operator writes memory or is random, so it is never replaced";
    case Why::kUsedOutside:
      return concat("its output ", index, " is used outside by ", name(),
                    "; make it an output too");
    case Why::kInputInside:
      return "an input would be computed inside of what is replaced";
    case Why::kWritten:
      return concat("its memory is written by ", name(), ", so it is not replaced");
    case Why::kWritesBetween:
      return concat(name(), " writes what it reads between it and the replacement");
    case Why::kOrder:
      break;
  }
  return words;
}

std::optional<PlacementRefusal> why_not_operators(const Graph& graph, const ReplacedPart& part) {
  for (const NodeId node : part.nodes) {
    const Operator* op = &graph.op(node);
    if (op == Operators::input() || op == Operators::output()) {
      return PlacementRefusal{Why::kNoOperator, node};
    }
    if (!graph.pure(node)) return PlacementRefusal{Why::kImpure, node};
  }
  return std::nullopt;
}

std::optional<PlacementRefusal> why_not_closed(const Graph& graph, const ReplacedPart& part) {
  const NodeSet inside(part.nodes);
  for (const NodeId node : part.nodes) {
    if (is_constant(graph, node)) continue;
    for (uint32_t i = 0; i < graph.output_count(node); ++i) {
      const auto& outputs = part.outputs;
      if (std::find(outputs.begin(), outputs.end(), ValueId{node, i}) != outputs.end()) continue;
      const NodeId outside = outside_reader(graph, {node, i}, inside);
      if (outside != kNoNode) return PlacementRefusal{Why::kUsedOutside, node, outside, i};
    }
  }
  for (const ValueId value : part.inputs) {
    if (!inside.contains(value.node) || is_constant(graph, value.node)) continue;
    return PlacementRefusal{Why::kInputInside, value.node};
  }
  return std::nullopt;
}

std::optional<PlacementRefusal> why_not_unwritten(const Graph&, const ReplacedPart& part,
                                                  const AliasAnalysis& aliases) {
  for (const ValueId value : part.outputs) {
    const NodeId writer = aliases.writer_of(value);
    if (writer != kNoNode) return PlacementRefusal{Why::kWritten, value.node, writer};
  }
  return std::nullopt;
}

std::variant<Placement, PlacementRefusal> stand(const Graph& graph, const ReplacedPart& part,
                                                const AliasAnalysis& aliases) {
  const NodeSet inside(part.nodes);
  NodeId reader = kNoNode;
  const auto comes = [&](NodeId node) {
    if (node != kNoNode && (reader == kNoNode || graph.is_before(node, reader))) reader = node;
  };
  for (const ValueId value : part.outputs) comes(outside_reader(graph, value, inside));
  for (const NodeId node : run_after(graph, part.nodes)) comes(node);
  std::vector<NodeId> needed;
  for (const ValueId value : part.inputs) needed.push_back(value.node);
  for (const NodeId node : run_before(graph, part.nodes)) needed.push_back(node);
  Placement found{graph.next(part.nodes.back()), {}};
  const bool is_early = reader != kNoNode && graph.is_before(reader, found.before);
  const bool has_late_input = std::any_of(needed.begin(), needed.end(), [&](NodeId node) {
    return !graph.is_before(node, found.before);
  });
  if (is_early || has_late_input) {
    if (reader != kNoNode) found.before = reader;
    auto plan = hoist_plan(graph, std::move(needed), found.before, inside.all(), aliases);
    if (auto* reason = std::get_if<std::string>(&plan)) {
      return PlacementRefusal{Why::kOrder, found.before, kNoNode, 0, std::move(*reason)};
    }
    found.hoist = std::get<std::vector<NodeId>>(std::move(plan));
  }
  if (auto refusal = why_not_at(graph, part, found.before, aliases)) return std::move(*refusal);
  return found;
}

std::variant<Placement, PlacementRefusal> place(const Graph& graph, const ReplacedPart& part,
                                                const AliasAnalysis& aliases) {
  if (auto refusal = why_not_operators(graph, part)) return std::move(*refusal);
  if (auto refusal = why_not_closed(graph, part)) return std::move(*refusal);
  if (auto refusal = why_not_unwritten(graph, part, aliases)) return std::move(*refusal);
  return stand(graph, part, aliases);
}

}  // namespace bringup::engine
