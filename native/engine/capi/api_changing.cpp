// The C API: changing graphs.
#include "engine/capi/access.h"
#include "engine/capi/api.h"
#include "engine/capi/marshal.h"
#include "engine/graph/node_factory.h"

namespace bringup::engine {
namespace {

void replace_all_uses(GraphEntry& entry, bringup_ir_value old, bringup_ir_value new_value) {
  exchange(*entry.graph, living(entry, old), living(entry, new_value), *entry.providers);
}

void set_argument(GraphEntry& entry, bringup_ir_node node, uint32_t index,
                  const bringup_argument* argument) {
  const Graph& target = *entry.graph;
  check_argument(target, living(entry, node), index);
  ArgumentList list;
  for (uint32_t other = 0; other < target.argument_count(node); ++other) {
    if (other == index) {
      put(list, entry.pieces, given(argument, "argument"));
    } else {
      list.put_all(item(target.arguments(node), other));
    }
  }
  check_objects(entry, list.items());
  const ArgumentSpan keywords = target.keywords(node);
  const std::vector<Argument> kept_keywords(keywords.begin(), keywords.end());
  entry.graph->rewire(node, {list.items(), list.count(), kept_keywords});
  infer_if_known(*entry.graph, node, *entry.providers);
}

void erase_node(GraphEntry& entry, bringup_ir_node node) {
  entry.graph->erase(living(entry, node));
}

void move_before(GraphEntry& entry, bringup_ir_node node, bringup_ir_node before) {
  entry.graph->move_before(living(entry, node), living(entry, before));
}

}  // namespace

void fill_changing_functions(bringup_engine_api& table) {
  table.replace_all_uses = api<replace_all_uses>;
  table.set_argument = api<set_argument>;
  table.erase_node = api<erase_node>;
  table.move_before = api<move_before>;
}

}  // namespace bringup::engine
