// A match that the native matcher found, copied: it stays as it is whatever the hooks do.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "engine/match.h"
#include "engine/matcher.h"

namespace bringup::engine {

class FoundMatch : public Match {
 public:
  FoundMatch(Graph& graph, const Program& program, const Candidate& candidate);

  Graph& graph() const override { return graph_; }
  std::string_view pattern_name() const override { return program_.pattern().name; }
  std::vector<NodeId> nodes() const override { return nodes_; }
  std::optional<ValueId> value(ValueId in_pattern) const override;
  std::optional<ValueId> captured(uint32_t index) const override;
  std::vector<Argument> named(std::string_view name) const override;

  // What the pattern's inputs and outputs stand for. EngineError when an input stands for nothing.
  std::vector<ValueId> inputs() const;
  const std::vector<ValueId>& outputs() const { return outputs_; }

 private:
  void copy_values(const Bindings& bound);
  void copy_names(const Bindings& bound);

  Graph& graph_;
  const Program& program_;
  std::vector<NodeId> nodes_;
  std::vector<ValueId> outputs_;
  std::unordered_map<ValueId, ValueId> values_;
  std::unordered_map<StringId, std::vector<Argument>> named_;
};

}  // namespace bringup::engine
