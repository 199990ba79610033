#include "engine_given_match.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "engine_handles.h"

namespace nb = nanobind;

namespace bringup::python {
namespace {

nb::dict table(const nb::dict& found, const char* key) { return nb::cast<nb::dict>(found[key]); }

en::Argument size_argument(nb::handle size) {
  if (PyLong_Check(size.ptr())) return en::Argument::of_int(nb::cast<int64_t>(size));
  return en::Argument::of_symbol(en::Strings::intern(nb::cast<std::string_view>(size)));
}

}  // namespace

GivenMatch::GivenMatch(GraphCore& core, const nb::dict& found, const GivenMatch* parent)
    : core_(core), parent_(parent) {
  name_ = nb::cast<std::string>(found["name"]);
  for (nb::handle node : found["nodes"]) nodes_.push_back(as_node(node.ptr())->id);
  for (auto [place, value] : table(found, "values")) {
    const nb::tuple in_pattern = nb::cast<nb::tuple>(place);
    values_[{nb::cast<uint32_t>(in_pattern[0]), nb::cast<uint32_t>(in_pattern[1])}] =
        value_of(value);
  }
  for (nb::handle value : found["captured"]) {
    captured_.push_back(value.is_none() ? std::nullopt : std::optional(value_of(value)));
  }
  take_names(found);
}

void GivenMatch::take_names(const nb::dict& found) {
  for (auto [name, argument] : table(found, "named")) {
    convert(core_, argument.ptr(), named_[nb::cast<std::string>(name)]);
  }
  for (auto [name, size] : table(found, "sizes")) {
    named_[nb::cast<std::string>(name)].put(size_argument(size));
  }
  for (auto [name, alternative] : table(found, "chosen")) {
    chosen_[nb::cast<std::string>(name)] = nb::cast<uint32_t>(alternative);
  }
  for (auto [name, listed] : table(found, "items")) {
    auto& items = items_[nb::cast<std::string>(name)];
    for (nb::handle item : nb::borrow(listed)) {
      items.push_back(std::make_unique<GivenMatch>(core_, nb::cast<nb::dict>(item), this));
    }
  }
}

en::ValueId GivenMatch::value_of(nb::handle object) const {
  ValueHandle* value = as_value(object.ptr());
  if (value == nullptr || value->core != &core_) throw nb::type_error("expected a value");
  return value->id;
}

std::optional<en::ValueId> GivenMatch::value(en::ValueId in_pattern) const {
  const auto place = values_.find(in_pattern);
  if (place == values_.end()) return std::nullopt;
  return place->second;
}

std::optional<en::ValueId> GivenMatch::captured(uint32_t index) const {
  return index < captured_.size() ? captured_[index] : std::nullopt;
}

std::vector<en::Argument> GivenMatch::named(std::string_view name) const {
  // A name belongs to the outermost pattern that has it.
  const en::ArgumentList* found = nullptr;
  for (const GivenMatch* match = this; match != nullptr; match = match->parent_) {
    const auto place = match->named_.find(name);
    if (place != match->named_.end()) found = &place->second;
  }
  if (found == nullptr) return {};
  return {found->items().begin(), found->items().end()};
}

std::optional<uint32_t> GivenMatch::chosen(std::string_view name) const {
  const auto place = chosen_.find(name);
  if (place == chosen_.end()) return std::nullopt;
  return place->second;
}

std::optional<std::vector<const en::Match*>> GivenMatch::items(std::string_view name) const {
  const auto place = items_.find(name);
  if (place == items_.end()) return std::nullopt;
  std::vector<const en::Match*> items;
  for (const auto& item : place->second) items.push_back(item.get());
  return items;
}

}  // namespace bringup::python
