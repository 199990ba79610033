#include "engine/found_match.h"

#include "engine/error.h"

namespace bringup::engine {
namespace {

constexpr uint32_t kRoot = 0;  // the frame of the pattern itself

std::vector<Argument> copy_of(const Captured& captured) {
  ArgumentList list;
  if (captured.is_list) list.open(Tag::kList);
  list.put_all(captured.span());
  if (captured.is_list) list.close();
  return {list.items().begin(), list.items().end()};
}

}  // namespace

FoundMatch::FoundMatch(Graph& graph, const Program& program, const Candidate& candidate)
    : graph_(graph), program_(program), nodes_(candidate.nodes) {
  copy_values(*candidate.bound);
  copy_names(*candidate.bound);
  for (const uint32_t term : program.root().outputs) {
    const auto found = candidate.bound->resolve(kRoot, term);
    if (!found) throw EngineError(ErrorCode::kInternal, "an output of a match stands for nothing");
    outputs_.push_back(*found);
  }
}

void FoundMatch::copy_values(const Bindings& bound) {
  const SubPattern& root = program_.root();
  for (uint32_t slot = 0; slot < root.nodes.size(); ++slot) {
    const NodeId node = bound.node(kRoot, slot);
    for (uint32_t index = 0; node != kNoNode && index < root.nodes[slot].output_count; ++index) {
      values_[{root.nodes[slot].id, index}] = {node, index};
    }
  }
  for (uint32_t slot = 0; slot < root.inputs.size(); ++slot) {
    const ValueId value = bound.input(kRoot, slot);
    if (value.node != kNoNode) values_[root.inputs[slot]] = value;
  }
  for (uint32_t slot = 0; slot < root.choices.size(); ++slot) {
    const uint32_t chosen = bound.choice(kRoot, slot);
    if (chosen == kNoSlot) continue;
    const auto value = bound.resolve(kRoot, root.choices[slot].alternatives[chosen]);
    if (value) values_[{root.choices[slot].id, 0}] = *value;
  }
}

void FoundMatch::copy_names(const Bindings& bound) {
  const std::vector<StringId>& names = program_.root().names;
  for (uint32_t slot = 0; slot < names.size(); ++slot) {
    const Captured& captured = bound.name(kRoot, slot);
    if (captured.bound) named_[names[slot]] = copy_of(captured);
  }
}

std::optional<ValueId> FoundMatch::value(ValueId in_pattern) const {
  const auto place = values_.find(in_pattern);
  if (place == values_.end()) return std::nullopt;
  return place->second;
}

std::optional<ValueId> FoundMatch::captured(uint32_t index) const {
  const std::vector<ValueId>& captured = program_.pattern().captured;
  return index < captured.size() ? value(captured[index]) : std::nullopt;
}

std::vector<Argument> FoundMatch::named(std::string_view name) const {
  const auto id = Strings::find(name);
  if (!id) return {};
  const auto argument = named_.find(*id);
  if (argument != named_.end()) return argument->second;
  const auto& names = program_.pattern().captured_names;
  const auto captured = names.find(*id);
  const auto found = captured == names.end() ? std::nullopt : value(captured->second);
  if (!found) return {};
  return {Argument::of_value(*found)};
}

std::vector<ValueId> FoundMatch::inputs() const {
  std::vector<ValueId> inputs;
  for (const ValueId input : program_.root().inputs) {
    const auto found = value(input);
    if (!found) {
      throw EngineError(ErrorCode::kPass, "input " + std::to_string(inputs.size()) +
                                              " of pattern " + quoted(pattern_name()) +
                                              " stands for nothing in this match");
    }
    inputs.push_back(*found);
  }
  return inputs;
}

}  // namespace bringup::engine
