// A match that the matcher found, copied: it stays as it is whatever the hooks do.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/match/match.h"
#include "engine/match/matcher.h"

namespace bringup::engine {

// The whole match, or that of one item of a list whose items are patterns.
class FoundMatch : public Match {
 public:
  FoundMatch(Graph& graph, const Program& program, const Bindings& bound,
             std::vector<NodeId> nodes);

  Graph& graph() const override { return graph_; }
  std::string_view pattern_name() const override { return sub_.pattern->name; }
  std::vector<NodeId> nodes() const override { return nodes_; }
  std::optional<ValueId> value(ValueId in_pattern) const override;
  std::optional<ValueId> captured(uint32_t index) const override;
  std::vector<Argument> named(std::string_view name) const override;
  std::optional<uint32_t> chosen(std::string_view name) const override;
  std::optional<std::vector<const Match*>> items(std::string_view name) const override;

 private:
  // What a value of the program's own pattern stands for.
  std::optional<ValueId> value_here(ValueId in_pattern) const;
  FoundMatch(const FoundMatch& parent, const Bindings& bound, uint32_t frame);
  void copy(const Bindings& bound, uint32_t frame);
  void copy_values(const Bindings& bound, uint32_t frame);
  void copy_choices(const Bindings& bound, uint32_t frame);
  void copy_names(const Bindings& bound, uint32_t frame);
  void copy_lists(const Bindings& bound, uint32_t frame);

  Graph& graph_;
  const Program& program_;
  const SubPattern& sub_;
  const FoundMatch* parent_ = nullptr;
  std::vector<NodeId> nodes_;
  std::unordered_map<ValueId, ValueId> values_;
  std::unordered_map<StringId, uint32_t> chosen_;
  std::unordered_map<StringId, std::vector<Argument>> named_;  // also lists and sizes
  std::map<StringId, std::vector<std::shared_ptr<FoundMatch>>> items_;
};

}  // namespace bringup::engine
