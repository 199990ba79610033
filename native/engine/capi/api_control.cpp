// The C API: control edges.
#include "engine/capi/access.h"
#include "engine/capi/api.h"
#include "engine/pattern/pattern_elements.h"

namespace bringup::engine {
namespace {

void add_control_edge(GraphEntry& entry, bringup_ir_node source, bringup_ir_node target) {
  const NodeId from = living(entry, source);
  if (&entry.graph->op(from) == outer_operator()) {
    throw EngineError(ErrorCode::kInvalid,
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

void fill_control_functions(bringup_engine_api& table) {
  table.add_control_edge = api<add_control_edge>;
  table.remove_control_edge = api<remove_control_edge>;
  table.node_control_inputs = api<node_control_inputs>;
  table.node_control_users = api<node_control_users>;
}

}  // namespace bringup::engine
