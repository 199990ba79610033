// The C API: changing graphs.
#include "engine/capi/access.h"
#include "engine/capi/api.h"
#include "engine/capi/marshal.h"
#include "engine/graph/node_factory.h"

namespace bringup::engine {
namespace {

int32_t replace_all_uses(bringup_ir_graph graph, bringup_ir_value old, bringup_ir_value new_value) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    exchange(*entry->graph, living(*entry, old), living(*entry, new_value), *entry->providers);
  });
}

int32_t set_argument(bringup_ir_graph graph, bringup_ir_node node, uint32_t index,
                     const bringup_argument* argument) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    const Graph& target = *entry->graph;
    const uint32_t count = target.argument_count(living(*entry, node));
    if (index >= count) {
      throw EngineError(ErrorCode::kMissing,
                        "node " + quoted(target.name_text(node)) + " has " + std::to_string(count) +
                            " arguments, there is no number " + std::to_string(index));
    }
    ArgumentList list;
    for (uint32_t other = 0; other < count; ++other) {
      if (other == index) {
        put(list, entry->pieces, given(argument, "argument"));
      } else {
        list.put_all(item(target.arguments(node), other));
      }
    }
    check_objects(*entry, list.items());
    const ArgumentSpan keywords = target.keywords(node);
    const std::vector<Argument> kept_keywords(keywords.begin(), keywords.end());
    entry->graph->rewire(node, {list.items(), list.count(), kept_keywords});
    infer_if_known(*entry->graph, node, *entry->providers);
  });
}

int32_t erase_node(bringup_ir_graph graph, bringup_ir_node node) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    entry->graph->erase(living(*entry, node));
  });
}

int32_t move_before(bringup_ir_graph graph, bringup_ir_node node, bringup_ir_node before) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    entry->graph->move_before(living(*entry, node), living(*entry, before));
  });
}

}  // namespace

void fill_changing_functions(bringup_engine_api& table) {
  table.replace_all_uses = replace_all_uses;
  table.set_argument = set_argument;
  table.erase_node = erase_node;
  table.move_before = move_before;
}

}  // namespace bringup::engine
