// Patterns for the tests of the matcher.
#pragma once

#include "engine/match/matcher.h"
#include "engine_graphs.h"

namespace engine_graphs {

inline en::Operator commutative(std::string_view type) {
  en::Operator facts = facts_of(type, 2);
  facts.commutes = true;
  return facts;
}

// A pattern of a graph that `make` fills; the value it returns is the output.
template <class Make>
std::shared_ptr<en::Pattern> pattern_of(Make&& make) {
  auto graph = std::make_shared<en::Graph>("pattern");
  auto pattern = std::make_shared<en::Pattern>();
  pattern->name = "pattern";
  const en::ValueId output = make(*graph, *pattern);
  graph->set_outputs(call(values({output})));
  pattern->graph = std::move(graph);
  return pattern;
}

// The names of the nodes of every match, one line a match.
inline std::string matches(const std::shared_ptr<en::Pattern>& pattern, const en::Graph& graph,
                           std::optional<en::NearMiss>* miss = nullptr) {
  const en::AliasAnalysis aliases(graph);
  en::Matcher matcher(en::Program::compile(pattern), graph, aliases);
  std::string all;
  while (const auto found = matcher.next()) all += names(graph, found->nodes) + "\n";
  if (miss != nullptr) *miss = matcher.near_miss();
  return all;
}

}  // namespace engine_graphs
