#include "engine/match/found_match.h"

#include <algorithm>

#include "engine/util/error.h"

namespace bringup::engine {
namespace {

constexpr uint32_t kRoot = 0;  // the frame of the pattern itself

std::vector<Argument> copy_of(ArgumentSpan items, bool is_list) {
  ArgumentList list;
  if (is_list) list.open(Tag::kList);
  list.put_all(items);
  if (is_list) list.close();
  return {list.items().begin(), list.items().end()};
}

Argument argument_of(const Dim& dim) {
  return dim.is_static() ? Argument::of_int(dim.number) : Argument::of_symbol(dim.symbol);
}

}  // namespace

FoundMatch::FoundMatch(Graph& graph, const Program& program, const Bindings& bound,
                       std::vector<NodeId> nodes)
    : graph_(graph), program_(program), sub_(program.root()) {
  copy(bound, kRoot);
  nodes_ = std::move(nodes);
}

FoundMatch::FoundMatch(const FoundMatch& parent, const Bindings& bound, uint32_t frame)
    : graph_(parent.graph_), program_(parent.program_), sub_(bound.sub(frame)), parent_(&parent) {
  copy(bound, frame);
  std::sort(nodes_.begin(), nodes_.end(),
            [&](NodeId one, NodeId other) { return graph_.is_before(one, other); });
}

void FoundMatch::copy(const Bindings& bound, uint32_t frame) {
  copy_values(bound, frame);
  copy_choices(bound, frame);
  copy_names(bound, frame);
  copy_lists(bound, frame);
}

void FoundMatch::copy_values(const Bindings& bound, uint32_t frame) {
  for (uint32_t slot = 0; slot < sub_.nodes.size(); ++slot) {
    const NodeId node = bound.node(frame, slot);
    if (node == kNoNode) continue;
    nodes_.push_back(node);
    for (uint32_t index = 0; index < sub_.nodes[slot].output_count; ++index) {
      values_[{sub_.nodes[slot].id, index}] = {node, index};
    }
  }
  for (uint32_t slot = 0; slot < sub_.inputs.size(); ++slot) {
    const ValueId value = bound.input(frame, slot);
    if (value.node != kNoNode) values_[sub_.inputs[slot]] = value;
  }
}

void FoundMatch::copy_choices(const Bindings& bound, uint32_t frame) {
  for (uint32_t slot = 0; slot < sub_.choices.size(); ++slot) {
    const uint32_t chosen = bound.choice(frame, slot);
    if (chosen == kNoSlot) continue;
    const NodeId node = sub_.choices[slot].id;
    const auto value = bound.resolve(frame, sub_.choices[slot].alternatives[chosen]);
    if (value) values_[{node, 0}] = *value;
    const auto name = sub_.pattern->choices.find(node);
    if (name != sub_.pattern->choices.end()) chosen_[name->second] = chosen;
  }
}

void FoundMatch::copy_names(const Bindings& bound, uint32_t frame) {
  for (uint32_t slot = 0; slot < sub_.names.size(); ++slot) {
    const Captured& captured = bound.name(frame, slot);
    if (captured.bound) named_[sub_.names[slot]] = copy_of(captured.span(), captured.is_list);
  }
  for (uint32_t slot = 0; slot < sub_.sizes.size(); ++slot) {
    const std::optional<Dim>& size = bound.size(frame, slot);
    if (size) named_[sub_.sizes[slot]] = {argument_of(*size)};
  }
}

void FoundMatch::copy_lists(const Bindings& bound, uint32_t frame) {
  for (uint32_t slot = 0; slot < sub_.lists.size(); ++slot) {
    const ListBinding& list = bound.list(frame, slot);
    if (!list.bound) continue;
    const StringId name = sub_.lists[slot];
    named_[name] = copy_of({list.first, list.count}, true);
    std::map<uint32_t, std::shared_ptr<FoundMatch>> made;  // equal values share a frame
    for (const uint32_t item : list.frames) {
      std::shared_ptr<FoundMatch>& match = made[item];
      if (match == nullptr) {
        match.reset(new FoundMatch(*this, bound, item));
        nodes_.insert(nodes_.end(), match->nodes_.begin(), match->nodes_.end());
      }
      items_[name].push_back(match);
    }
    items_.try_emplace(name);
  }
}

std::optional<ValueId> FoundMatch::value(ValueId in_pattern) const {
  const auto& known_as = sub_.pattern->known_as;
  if (known_as.empty()) return value_here(in_pattern);
  const auto place = known_as.find(in_pattern);
  return place == known_as.end() ? std::nullopt : value_here(place->second);
}

std::optional<ValueId> FoundMatch::value_here(ValueId in_pattern) const {
  const auto place = values_.find(in_pattern);
  if (place == values_.end()) return std::nullopt;
  return place->second;
}

std::optional<ValueId> FoundMatch::captured(uint32_t index) const {
  const std::vector<ValueId>& captured = sub_.pattern->captured;
  return index < captured.size() ? value_here(captured[index]) : std::nullopt;
}

std::vector<Argument> FoundMatch::named(std::string_view name) const {
  const auto id = Strings::find(name);
  if (!id) return {};
  // A name belongs to the outermost pattern that has it.
  const std::vector<Argument>* found = nullptr;
  for (const FoundMatch* match = this; match != nullptr; match = match->parent_) {
    const auto place = match->named_.find(*id);
    if (place != match->named_.end()) found = &place->second;
  }
  if (found != nullptr) return *found;
  const auto& names = sub_.pattern->captured_names;
  const auto captured = names.find(*id);
  const auto stands_for = captured == names.end() ? std::nullopt : value_here(captured->second);
  if (!stands_for) return {};
  return {Argument::of_value(*stands_for)};
}

std::optional<uint32_t> FoundMatch::chosen(std::string_view name) const {
  const auto id = Strings::find(name);
  const auto place = id ? chosen_.find(*id) : chosen_.end();
  if (place == chosen_.end()) return std::nullopt;
  return place->second;
}

std::optional<std::vector<const Match*>> FoundMatch::items(std::string_view name) const {
  const auto id = Strings::find(name);
  const auto place = id ? items_.find(*id) : items_.end();
  if (place == items_.end()) return std::nullopt;
  std::vector<const Match*> items;
  for (const auto& item : place->second) items.push_back(item.get());
  return items;
}

}  // namespace bringup::engine
