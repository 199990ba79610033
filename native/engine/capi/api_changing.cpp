// The C API: changing graphs, and their control edges.
#include "engine/capi/access.h"
#include "engine/capi/api.h"
#include "engine/capi/marshal.h"
#include "engine/graph/node_factory.h"
#include "engine/pattern/pattern_elements.h"

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

void add_control_edge(GraphEntry& entry, bringup_ir_node source, bringup_ir_node target) {
  const NodeId from = living(entry, source);
  if (&entry.graph->op(from) == outer_operator()) {
    throw_error(ErrorCode::kInvalid,
                "no control edge can lead from a value of the graph that is being "
                "rewritten; let it be an input of the replacement");
  }
  entry.graph->add_control_edge(from, living(entry, target));
}

void remove_control_edge(GraphEntry& entry, bringup_ir_node source, bringup_ir_node target) {
  entry.graph->remove_control_edge(living(entry, source), living(entry, target));
}

void node_control_inputs(GraphEntry& entry, bringup_ir_node node, const bringup_ir_node** nodes,
                         uint32_t* count) {
  hand_out(entry, entry.graph->control_inputs(living(entry, node)), nodes, count);
}

void node_control_users(GraphEntry& entry, bringup_ir_node node, const bringup_ir_node** nodes,
                        uint32_t* count) {
  hand_out(entry, entry.graph->control_users(living(entry, node)), nodes, count);
}

}  // namespace

void fill_changing_functions(bringup_engine_api& table) {
  table.replace_all_uses = api<replace_all_uses>;
  table.set_argument = api<set_argument>;
  table.erase_node = api<erase_node>;
  table.move_before = api<move_before>;
  table.add_control_edge = api<add_control_edge>;
  table.remove_control_edge = api<remove_control_edge>;
  table.node_control_inputs = api<node_control_inputs>;
  table.node_control_users = api<node_control_users>;
}

}  // namespace bringup::engine
