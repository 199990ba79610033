#include "engine/analysis/control.h"

#include <algorithm>
#include <unordered_set>

#include "engine/graph/text.h"

namespace bringup::engine {
namespace {

using Nodes = std::unordered_set<NodeId>;

void add_new(std::vector<NodeId>& nodes, NodeId node) {
  if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
}

template <class Neighbours>
std::vector<NodeId> outside(const Graph& graph, std::span<const NodeId> part,
                            Neighbours&& neighbours) {
  std::vector<NodeId> found;
  if (!graph.has_control_edges()) return found;
  const Nodes inside(part.begin(), part.end());
  for (const NodeId node : part) {
    for (const NodeId other : neighbours(node)) {
      if (!inside.contains(other)) add_new(found, other);
    }
  }
  return found;
}

bool is_call(const Graph& graph, NodeId node) {
  const Operator* op = &graph.op(node);
  return op != Operators::input() && op != Operators::constant();
}

// The calls that need none of the others, and those that none of the others needs.
struct Ends {
  std::vector<NodeId> first;
  std::vector<NodeId> last;
};

Ends ends_of(const Graph& graph, std::span<const NodeId> made) {
  Nodes calls, needed;
  for (const NodeId node : made) {
    if (is_call(graph, node)) calls.insert(node);
  }
  Ends ends;
  for (const NodeId node : made) {
    if (!calls.contains(node)) continue;
    bool needs = false;
    const auto visit = [&](NodeId before) {
      if (!calls.contains(before)) return;
      needs = true;
      needed.insert(before);
    };
    for_each_value(graph.all_arguments(node), [&](ValueId value) { visit(value.node); });
    for (const NodeId before : graph.control_inputs(node)) visit(before);
    if (!needs) ends.first.push_back(node);
  }
  for (const NodeId node : made) {
    if (calls.contains(node) && !needed.contains(node)) ends.last.push_back(node);
  }
  return ends;
}

}  // namespace

std::vector<NodeId> run_before(const Graph& graph, std::span<const NodeId> part) {
  return outside(graph, part, [&](NodeId node) { return graph.control_inputs(node); });
}

std::vector<NodeId> run_after(const Graph& graph, std::span<const NodeId> part) {
  return outside(graph, part, [&](NodeId node) { return graph.control_users(node); });
}

bool reads_through(const Graph& graph, NodeId node, NodeId source,
                   const std::function<bool(NodeId)>& is_inside) {
  std::vector<NodeId> agenda = {node};
  Nodes seen;
  while (!agenda.empty()) {
    const NodeId at = agenda.back();
    agenda.pop_back();
    if (at == source) return true;
    if (!is_inside(at) || !seen.insert(at).second) continue;
    for_each_value(graph.all_arguments(at), [&](ValueId value) { agenda.push_back(value.node); });
  }
  return false;
}

void move_control_edges(Graph& graph, std::span<const NodeId> part, const Successor& successor) {
  const std::vector<NodeId> before = run_before(graph, part);
  const std::vector<NodeId> after = run_after(graph, part);
  if (before.empty() && after.empty()) return;
  const Ends ends = ends_of(graph, successor.made);
  const Nodes replaced(part.begin(), part.end());
  const Nodes made(successor.made.begin(), successor.made.end());
  std::vector<NodeId> first = ends.first;
  std::vector<NodeId> last = ends.last;
  for (size_t i = 0; i < successor.results.size(); ++i) {
    const NodeId producer = successor.results[i].node;
    if (made.contains(producer) && is_call(graph, producer)) continue;
    if (is_call(graph, producer)) add_new(last, producer);
    for (const NodeId reader : graph.sorted_users(successor.outputs[i])) {
      const bool is_outside = !replaced.contains(reader) && !made.contains(reader);
      if (is_outside && reader != graph.last()) add_new(first, reader);
    }
  }
  if (ends.first.empty()) {
    for (const NodeId node : before) add_new(last, node);
  }
  for (const NodeId node : first) {
    for (const NodeId source : before) graph.add_control_edge(source, node);
  }
  for (const NodeId node : after) {
    std::vector<NodeId> inputs = graph.control_inputs(node);
    std::erase_if(inputs, [&](NodeId input) { return replaced.contains(input); });
    for (const NodeId input : last) add_new(inputs, input);
    graph.set_control_inputs(node, inputs);
  }
}

std::string names_text(const Graph& graph, std::span<const NodeId> nodes) {
  std::string text;
  for (const NodeId node : nodes) {
    text += concat(text.empty() ? "" : ", ", in_quotes(graph.name_text(node)));
  }
  return text.empty() ? "none" : text;
}

}  // namespace bringup::engine
