// What the functions of the C API have in common when they use a graph.
#pragma once

#include <string>
#include <vector>

#include "engine/capi/handles.h"

namespace bringup::engine {

// What is refused as too great an index. `held`: "list 'x' has 2 items".
inline EngineError no_number(const std::string& held, uint32_t index,
                             ErrorCode code = ErrorCode::kMissing) {
  return {code, held + ", there is no number " + std::to_string(index)};
}

// The node lives; EngineError(kExpired) otherwise.
inline NodeId living(const GraphEntry& entry, bringup_ir_node node) {
  if (entry.graph->alive(node)) return node;
  throw_error(ErrorCode::kExpired, "graph handle has expired: ", node,
              " is no node that lives in graph ", in_quotes(entry.graph->name()));
}

inline ValueId living(const GraphEntry& entry, bringup_ir_value value) {
  const ValueId found{living(entry, value.node), value.index};
  if (entry.graph->has(found)) return found;
  throw no_number(concat("node ", in_quotes(entry.graph->name_text(found.node)), " has ",
                         entry.graph->output_count(found.node), " outputs"),
                  value.index, ErrorCode::kInvalid);
}

inline void check_argument(const Graph& graph, NodeId node, uint32_t index) {
  const uint32_t count = graph.argument_count(node);
  if (index < count) return;
  throw no_number(
      "node " + in_quotes(graph.name_text(node)) + " has " + std::to_string(count) + " arguments",
      index);
}

// The host of the graph knows every object that these arguments name.
inline void check_objects(const GraphEntry& entry, ArgumentSpan arguments) {
  Host* host = entry.graph->host();
  for (const Argument& argument : arguments) {
    if (argument.tag != Tag::kOpaque || host == nullptr) continue;
    if (host->has_object(*entry.graph, argument.id)) continue;
    throw_error(ErrorCode::kInvalid, "graph ", in_quotes(entry.graph->name()),
                " has no such object");
  }
}

inline void hand_out(GraphEntry& entry, const std::vector<NodeId>& found,
                     const bringup_ir_node** nodes, uint32_t* count) {
  auto* copy = entry.array<bringup_ir_node>(found.size());
  std::copy(found.begin(), found.end(), copy);
  given(nodes, "nodes") = copy;
  given(count, "count") = static_cast<uint32_t>(found.size());
}

inline void hand_out(GraphEntry& entry, const std::vector<ValueId>& found,
                     const bringup_ir_value** values, uint32_t* count) {
  auto* copy = entry.array<bringup_ir_value>(found.size());
  for (size_t index = 0; index < found.size(); ++index) {
    copy[index] = {found[index].node, found[index].index};
  }
  given(values, "values") = copy;
  given(count, "count") = static_cast<uint32_t>(found.size());
}

}  // namespace bringup::engine
