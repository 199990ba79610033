#include "engine/shared_outputs.h"

#include <map>

#include "engine/error.h"
#include "engine/storages.h"

namespace bringup::engine {
namespace {

// What splits a storage, and which part of it a value lies in; kNoNode: nothing does.
using Part = std::pair<NodeId, uint32_t>;

Part part_of(const Graph& graph, ValueId value) {
  Part part{kNoNode, 0};
  while (true) {
    const Operator& op = graph.op(value.node);
    if (op.aliases.size() != 1 || !op.mutates.empty()) return part;
    const ArgumentSpan source = item(graph.arguments(value.node), op.aliases.front());
    if (source.size() != 1 || source.front().tag != Tag::kValue) return part;
    if (graph.output_count(value.node) > 1) part = {value.node, value.index};
    value = source.front().value;
  }
}

// The parts of a storage whose results all come from one split lie apart from each other.
struct Storage {
  NodeId split = kNoNode;
  bool is_split = true;
};

}  // namespace

SharedOutputs shared_outputs(const Graph& graph) {
  const Storages storages(graph, true);
  const std::vector<ValueId> outputs = graph.outputs();
  std::vector<Part> parts;
  std::map<NodeId, Storage> known;
  for (const ValueId value : outputs) {
    parts.push_back(part_of(graph, value));
    const auto [found, is_new] = known.try_emplace(storages.root(value));
    Storage& storage = found->second;
    if (is_new) storage.split = parts.back().first;
    if (parts.back().first == kNoNode || parts.back().first != storage.split) {
      storage.is_split = false;
    }
  }
  SharedOutputs shared;
  std::map<std::pair<NodeId, uint32_t>, uint32_t> firsts;
  for (uint32_t index = 0; index < outputs.size(); ++index) {
    const NodeId root = storages.root(outputs[index]);
    const uint32_t part = known[root].is_split ? parts[index].second + 1 : 0;
    shared.first.push_back(firsts.try_emplace({root, part}, index).first->second);
    const Operator* op = &graph.op(root);
    if (op == Operators::input() || op == Operators::constant()) shared.given.insert({index, root});
  }
  return shared;
}

std::optional<NewlyShared> newly_shared(const Graph& graph, const SharedOutputs& before) {
  if (!graph.values_are_memory()) return std::nullopt;
  const SharedOutputs now = shared_outputs(graph);
  for (const auto& [index, node] : now.given) {
    if (before.given.contains({index, node})) continue;
    return NewlyShared{index, "result " + std::to_string(index) +
                                  " of the graph would share memory with " +
                                  quoted(graph.name_text(node)) +
                                  ", which it did not before: copy it (aten::clone)"};
  }
  if (now.first.size() != before.first.size()) return std::nullopt;  // other results altogether
  for (uint32_t index = 0; index < now.first.size(); ++index) {
    const uint32_t other = now.first[index];
    if (before.first[index] == before.first[other]) continue;
    return NewlyShared{index, "results " + std::to_string(other) + " and " + std::to_string(index) +
                                  " of the graph would share memory, which they did not before: "
                                  "copy one (aten::clone)"};
  }
  return std::nullopt;
}

}  // namespace bringup::engine
