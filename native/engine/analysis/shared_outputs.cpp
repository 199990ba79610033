#include "engine/analysis/shared_outputs.h"

#include <map>
#include <unordered_set>

#include "engine/util/error.h"

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

// The values whose memory a value may have. Looks only at what the value depends on.
std::vector<ValueId> sources_of(const Graph& graph, ValueId value) {
  std::vector<ValueId> found, agenda = {value};
  std::unordered_set<ValueId> seen = {value};
  while (!agenda.empty()) {
    const ValueId next = agenda.back();
    agenda.pop_back();
    bool is_source = true;
    const auto go_on = [&](ValueId source) {
      is_source = false;
      if (seen.insert(source).second) agenda.push_back(source);
    };
    const Operator& op = graph.op(next.node);
    const ArgumentSpan arguments = graph.arguments(next.node);
    for (const uint32_t index : op.aliases) for_each_value(item(arguments, index), go_on);
    for (const uint32_t index : op.mutates) for_each_value(item(arguments, index), go_on);
    if (is_source) found.push_back(next);
  }
  return found;
}

// Which results may share a storage: those that have a source in common.
class StorageClasses {
 public:
  void add(uint32_t output, std::span<const ValueId> sources) {
    for (const ValueId source : sources) {
      const auto [found, is_new] = owners_.try_emplace(source, output);
      if (!is_new) above_[find(found->second)] = find(output);
    }
  }
  // The result that stands for the class of another.
  uint32_t find(uint32_t output) {
    const auto above = above_.try_emplace(output, output).first->second;
    return above == output ? output : find(above);
  }

 private:
  std::unordered_map<ValueId, uint32_t> owners_;  // a result that has this source
  std::map<uint32_t, uint32_t> above_;            // a union-find forest
};

// The parts of a storage whose results all come from one split lie apart from each other.
struct Split {
  NodeId node = kNoNode;
  bool is_split = true;
};

// The results that lay in one storage with another; not those that shared memory with `given`.
std::vector<uint32_t> stored_with(uint32_t output, const SharedOutputs& before, NodeId given) {
  std::vector<uint32_t> found;
  if (output >= before.storage.size()) return {output};  // other results altogether
  for (uint32_t index = 0; index < before.storage.size(); ++index) {
    const bool is_alike = before.storage[index] == before.storage[output];
    if (is_alike && !before.given.contains({index, given})) found.push_back(index);
  }
  return found;
}

}  // namespace

SharedOutputs shared_outputs(const Graph& graph) {
  const std::vector<ValueId> outputs = graph.outputs();
  SharedOutputs shared;
  StorageClasses storages;
  for (uint32_t index = 0; index < outputs.size(); ++index) {
    const std::vector<ValueId> sources = sources_of(graph, outputs[index]);
    storages.add(index, sources);
    for (const ValueId source : sources) {
      const Operator* op = &graph.op(source.node);
      if (op != Operators::input() && op != Operators::constant()) continue;
      shared.given.insert({index, source.node});
    }
  }
  std::vector<Part> parts;
  std::map<uint32_t, Split> splits;  // by storage
  for (uint32_t index = 0; index < outputs.size(); ++index) {
    parts.push_back(part_of(graph, outputs[index]));
    const auto [found, is_new] = splits.try_emplace(storages.find(index));
    Split& split = found->second;
    if (is_new) split.node = parts.back().first;
    if (parts.back().first == kNoNode || parts.back().first != split.node) split.is_split = false;
  }
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> firsts;  // by storage and part
  for (uint32_t index = 0; index < outputs.size(); ++index) {
    const uint32_t storage = storages.find(index);
    const uint32_t part = splits[storage].is_split ? parts[index].second + 1 : 0;
    shared.first.push_back(firsts.try_emplace({storage, part}, index).first->second);
    shared.storage.push_back(storage);
  }
  return shared;
}

std::optional<NewlyShared> newly_shared(const Graph& graph, const SharedOutputs& before) {
  if (!graph.values_are_memory()) return std::nullopt;
  const SharedOutputs now = shared_outputs(graph);
  for (const auto& [index, node] : now.given) {
    if (before.given.contains({index, node})) continue;
    return NewlyShared{stored_with(index, before, node),
                       concat("result ", index, " of the graph would share memory with ",
                              in_quotes(graph.name_text(node)),
                              ", which it did not before: copy it (aten::clone)")};
  }
  if (now.first.size() != before.first.size()) return std::nullopt;  // other results altogether
  for (uint32_t index = 0; index < now.first.size(); ++index) {
    const uint32_t other = now.first[index];
    if (before.first[index] == before.first[other]) continue;
    return NewlyShared{stored_with(index, before, kNoNode),
                       concat("results ", other, " and ", index,
                              " of the graph would share memory, which they did not before: "
                              "copy one (aten::clone)")};
  }
  return std::nullopt;
}

}  // namespace bringup::engine
