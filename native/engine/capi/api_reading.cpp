// The C API: reading graphs.
#include "engine/capi/access.h"
#include "engine/capi/api.h"
#include "engine/capi/marshal.h"
#include "engine/graph/node_factory.h"

namespace bringup::engine {
namespace {

int32_t graph_name(bringup_ir_graph graph, const char** name) {
  return guarded([&] { given(name, "name") = kept(graph_of(graph)->graph->name()); });
}

int32_t node_count(bringup_ir_graph graph, uint32_t* count) {
  return guarded(
      [&] { given(count, "count") = static_cast<uint32_t>(graph_of(graph)->graph->size()); });
}

int32_t first_node(bringup_ir_graph graph, bringup_ir_node* node) {
  return guarded([&] { given(node, "node") = graph_of(graph)->graph->first(); });
}

int32_t next_node(bringup_ir_graph graph, bringup_ir_node node, bringup_ir_node* next) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    given(next, "next") = entry->graph->next(living(*entry, node));
  });
}

int32_t find_nodes(bringup_ir_graph graph, const char* type, const bringup_ir_node** nodes,
                   uint32_t* count) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    std::vector<NodeId> found;
    if (const auto id = Strings::find(text_given(type, "type"))) {
      const std::span<const NodeId> indexed = entry->graph->find(*id);
      found.assign(indexed.begin(), indexed.end());
    }
    hand_out(*entry, found, nodes, count);
  });
}

int32_t find_node(bringup_ir_graph graph, const char* name, bringup_ir_node* node) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    const NodeId found = entry->graph->find_by_name(text_given(name, "name"));
    if (found == kNoNode) {
      throw EngineError(ErrorCode::kMissing, "graph " + quoted(entry->graph->name()) +
                                                 " has no node named " + quoted(name));
    }
    given(node, "node") = found;
  });
}

int32_t graph_inputs(bringup_ir_graph graph, const bringup_ir_value** values, uint32_t* count) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    hand_out(*entry, entry->graph->inputs(), values, count);
  });
}

int32_t graph_outputs(bringup_ir_graph graph, const bringup_ir_value** values, uint32_t* count) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    hand_out(*entry, entry->graph->outputs(), values, count);
  });
}

int32_t node_type(bringup_ir_graph graph, bringup_ir_node node, const char** type) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    given(type, "type") = Strings::text(entry->graph->type(living(*entry, node))).data();
  });
}

int32_t node_name(bringup_ir_graph graph, bringup_ir_node node, const char** name) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    given(name, "name") = entry->graph->name_text(living(*entry, node)).data();
  });
}

int32_t node_argument_count(bringup_ir_graph graph, bringup_ir_node node, uint32_t* count) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    given(count, "count") = entry->graph->argument_count(living(*entry, node));
  });
}

void read_argument(GraphEntry& entry, NodeId node, uint32_t index, bringup_argument* argument) {
  if (index >= entry.graph->argument_count(node)) {
    throw EngineError(ErrorCode::kMissing,
                      "node " + quoted(entry.graph->name_text(node)) + " has " +
                          std::to_string(entry.graph->argument_count(node)) +
                          " arguments, there is no number " + std::to_string(index));
  }
  given(argument, "argument") = argument_of(entry, item(entry.graph->arguments(node), index));
}

int32_t node_argument(bringup_ir_graph graph, bringup_ir_node node, uint32_t index,
                      bringup_argument* argument) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    read_argument(*entry, living(*entry, node), index, argument);
  });
}

int32_t node_argument_named(bringup_ir_graph graph, bringup_ir_node node, const char* name,
                            bringup_argument* argument) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    const Operator& op = entry->graph->op(living(*entry, node));
    const auto id = Strings::find(text_given(name, "name"));
    const auto index = id ? op.index_of(*id) : std::nullopt;
    if (!index) {
      throw EngineError(ErrorCode::kMissing,
                        std::string(Strings::text(op.type)) + " has no parameter " + quoted(name));
    }
    read_argument(*entry, node, *index, argument);
  });
}

int32_t node_inputs(bringup_ir_graph graph, bringup_ir_node node, const bringup_ir_value** values,
                    uint32_t* count) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    std::vector<ValueId> reads;
    for_each_value(entry->graph->all_arguments(living(*entry, node)),
                   [&](ValueId value) { reads.push_back(value); });
    hand_out(*entry, reads, values, count);
  });
}

int32_t node_output_count(bringup_ir_graph graph, bringup_ir_node node, uint32_t* count) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    given(count, "count") = entry->graph->output_count(living(*entry, node));
  });
}

int32_t node_is_pure(bringup_ir_graph graph, bringup_ir_node node, int32_t* pure) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    given(pure, "pure") = entry->graph->pure(living(*entry, node)) ? 1 : 0;
  });
}

int32_t node_rule(bringup_ir_graph graph, bringup_ir_node node, const char** rule) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    given(rule, "rule") = Strings::text(entry->graph->rule(living(*entry, node))).data();
  });
}

int32_t node_origin(bringup_ir_graph graph, bringup_ir_node node, const char* const** names,
                    uint32_t* count) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    const auto origin = entry->graph->attribute(living(*entry, node), origin_attribute());
    const ArgumentSpan listed = origin ? origin->subspan(1) : ArgumentSpan();
    auto** copy = entry->array<const char*>(listed.size());
    for (size_t index = 0; index < listed.size(); ++index) {
      copy[index] = Strings::text(listed[index].id).data();
    }
    given(names, "names") = copy;
    given(count, "count") = static_cast<uint32_t>(listed.size());
  });
}

int32_t value_users(bringup_ir_graph graph, bringup_ir_value value, const bringup_ir_node** nodes,
                    uint32_t* count) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    hand_out(*entry, entry->graph->sorted_users(living(*entry, value)), nodes, count);
  });
}

bool is_given(const Graph& graph, NodeId node) {
  return &graph.op(node) == Operators::input() || &graph.op(node) == Operators::constant();
}

int32_t value_desc(bringup_ir_graph graph, bringup_ir_value value, bringup_tensor_desc* desc) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    const ValueId found = living(*entry, value);
    const std::string name = quoted(entry->graph->name_text(found.node));
    if (entry->shapes_withheld && !is_given(*entry->graph, found.node)) {
      throw EngineError(ErrorCode::kInvalid,
                        "the shape of " + name + " is inferred, which a pass of stage " +
                            std::string(name_of(Stage::kBeforeInferShape)) + " may not read");
    }
    const TensorDesc* known = entry->graph->desc(found);
    if (known == nullptr) {
      throw EngineError(ErrorCode::kMissing, "nothing is known about the shape of " + name);
    }
    whole(desc, "desc");
    fill(*entry, *known, *desc);
  });
}

int32_t node_constant(bringup_ir_graph graph, bringup_ir_node node, bringup_constant* constant) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    const ConstantData* data = entry->graph->payload(living(*entry, node));
    if (data == nullptr) {
      throw EngineError(ErrorCode::kMissing,
                        "the data of " + quoted(entry->graph->name_text(node)) + " are not known");
    }
    whole(constant, "constant");
    fill(*entry, *data, *constant);
  });
}

int32_t node_supported(bringup_ir_graph graph, bringup_ir_node node, int32_t* supported,
                       const char** reason) {
  return guarded([&] {
    const auto entry = graph_of(graph);
    const auto unsupported_reason = entry->providers->supports(*entry->graph, living(*entry, node));
    given(supported, "supported") = unsupported_reason ? 0 : 1;
    if (reason != nullptr) *reason = kept(unsupported_reason.value_or(""));
  });
}

}  // namespace

void fill_reading_functions(bringup_engine_api& table) {
  table.graph_name = graph_name;
  table.node_count = node_count;
  table.first_node = first_node;
  table.next_node = next_node;
  table.find_nodes = find_nodes;
  table.find_node = find_node;
  table.graph_inputs = graph_inputs;
  table.graph_outputs = graph_outputs;
  table.node_type = node_type;
  table.node_name = node_name;
  table.node_argument_count = node_argument_count;
  table.node_argument = node_argument;
  table.node_argument_named = node_argument_named;
  table.node_inputs = node_inputs;
  table.node_output_count = node_output_count;
  table.node_is_pure = node_is_pure;
  table.node_rule = node_rule;
  table.node_origin = node_origin;
  table.value_users = value_users;
  table.value_desc = value_desc;
  table.node_constant = node_constant;
  table.node_supported = node_supported;
}

}  // namespace bringup::engine
