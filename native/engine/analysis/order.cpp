#include "engine/analysis/order.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace bringup::engine {
namespace {

// What must have run before `node` runs.
void add_producers(const Graph& graph, NodeId node, std::vector<NodeId>& found) {
  for (const NodeId input : graph.control_inputs(node)) found.push_back(input);
  for_each_value(graph.all_arguments(node), [&](ValueId value) { found.push_back(value.node); });
}

std::string described(const Graph& graph, NodeId node) {
  return concat(in_quotes(graph.name_text(node)), " (", Strings::text(graph.type(node)), ")");
}

// Why `node` cannot run as early as `before`; empty when it can.
std::string obstacle(const Graph& graph, NodeId node, NodeId before, const AliasAnalysis& aliases) {
  if (!graph.pure(node)) {
    return described(graph, node) + " would have to run earlier, but it has side effects";
  }
  std::string reason;
  for_each_value(graph.all_arguments(node), [&](ValueId value) {
    const NodeId writer = reason.empty() ? aliases.writer_between(value, before, node) : kNoNode;
    if (writer == kNoNode) return;
    reason = concat(in_quotes(graph.name_text(node)), " would have to run before ",
                    in_quotes(graph.name_text(writer)), ", a writer of its input");
  });
  return reason;
}

}  // namespace

std::variant<std::vector<NodeId>, std::string> hoist_plan(const Graph& graph,
                                                          std::vector<NodeId> needed, NodeId before,
                                                          std::span<const NodeId> blocked,
                                                          const AliasAnalysis& aliases) {
  std::vector<NodeId> agenda = std::move(needed);
  std::vector<NodeId> late;
  std::unordered_set<NodeId> seen;
  while (!agenda.empty()) {
    const NodeId node = agenda.back();
    agenda.pop_back();
    const bool is_blocked = std::binary_search(blocked.begin(), blocked.end(), node) &&
                            &graph.op(node) != Operators::constant();
    if (!is_blocked && (graph.is_before(node, before) || seen.contains(node))) continue;
    if (is_blocked || node == before) {
      return concat("it would make a cycle: what it needs depends on ",
                    in_quotes(graph.name_text(node)), ", which needs it");
    }
    seen.insert(node);
    late.push_back(node);
    add_producers(graph, node, agenda);
  }
  for (const NodeId node : late) {
    std::string reason = obstacle(graph, node, before, aliases);
    if (!reason.empty()) return reason;
  }
  std::sort(late.begin(), late.end(),
            [&](NodeId one, NodeId other) { return graph.is_before(one, other); });
  return late;
}

std::optional<OrderFailure> topological_sort(Graph& graph) {
  std::vector<NodeId> early;
  std::vector<NodeId> producers;
  for (NodeId node = graph.first(); node != kNoNode; node = graph.next(node)) {
    producers.clear();
    add_producers(graph, node, producers);
    const bool waits = std::any_of(producers.begin(), producers.end(), [&](NodeId producer) {
      return !graph.is_before(producer, node);
    });
    if (waits) early.push_back(node);
  }
  if (early.empty()) return std::nullopt;
  const AliasAnalysis aliases(graph);
  for (const NodeId node : early) {
    producers.clear();
    add_producers(graph, node, producers);
    auto moves = hoist_plan(graph, producers, node, {}, aliases);
    if (auto* reason = std::get_if<std::string>(&moves)) return OrderFailure{node, *reason};
    for (const NodeId producer : std::get<std::vector<NodeId>>(moves)) {
      graph.move_before(producer, node);
    }
  }
  return std::nullopt;
}

void check_has_no_cycle(Graph& graph, std::string_view what) {
  if (!graph.has_control_edges()) return;
  const std::optional<OrderFailure> failure = topological_sort(graph);
  if (!failure) return;
  throw_error(ErrorCode::kPass, what, " ", in_quotes(graph.name()), " cannot run: at ",
              in_quotes(graph.name_text(failure->node)), " ", failure->reason);
}

}  // namespace bringup::engine
