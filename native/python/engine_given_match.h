// A match that Python found, for hooks of a library.
#pragma once

#include <nanobind/nanobind.h>

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/match/match.h"
#include "engine_core.h"

namespace bringup::python {

class GivenMatch : public en::Match {
 public:
  // `found`: name, nodes, values {(node, index): value}, captured [value or None], named {name:
  // argument}, sizes {name: number or expression}, chosen {name: number}, items {name: [found]}.
  // The graph's core must live longer. Raises what a wrong dict raises.
  GivenMatch(GraphCore& core, const nanobind::dict& found, const GivenMatch* parent = nullptr);

  en::Graph& graph() const override { return core_.graph; }
  std::string_view pattern_name() const override { return name_; }
  std::vector<en::NodeId> nodes() const override { return nodes_; }
  std::optional<en::ValueId> value(en::ValueId in_pattern) const override;
  std::optional<en::ValueId> captured(uint32_t index) const override;
  std::vector<en::Argument> named(std::string_view name) const override;
  std::optional<uint32_t> chosen(std::string_view name) const override;
  std::optional<std::vector<const en::Match*>> items(std::string_view name) const override;

 private:
  en::ValueId value_of(nanobind::handle object) const;
  void take_names(const nanobind::dict& found);

  GraphCore& core_;
  const GivenMatch* parent_;
  std::string name_;
  std::vector<en::NodeId> nodes_;
  std::unordered_map<en::ValueId, en::ValueId> values_;
  std::vector<std::optional<en::ValueId>> captured_;
  std::map<std::string, en::ArgumentList, std::less<>> named_;
  std::map<std::string, uint32_t, std::less<>> chosen_;
  std::map<std::string, std::vector<std::unique_ptr<GivenMatch>>, std::less<>> items_;
};

}  // namespace bringup::python
