// The C API: reading graphs.
#include "engine/capi/access.h"
#include "engine/capi/api.h"
#include "engine/capi/marshal.h"
#include "engine/graph/node_factory.h"

namespace bringup::engine {
namespace {

void graph_name(GraphEntry& entry, const char** name) {
  given(name, "name") = kept(entry.graph->name());
}

void node_count(GraphEntry& entry, uint32_t* count) {
  given(count, "count") = static_cast<uint32_t>(entry.graph->size());
}

void first_node(GraphEntry& entry, bringup_ir_node* node) {
  given(node, "node") = entry.graph->first();
}

void next_node(GraphEntry& entry, bringup_ir_node node, bringup_ir_node* next) {
  given(next, "next") = entry.graph->next(living(entry, node));
}

void find_nodes(GraphEntry& entry, const char* type, const bringup_ir_node** nodes,
                uint32_t* count) {
  std::vector<NodeId> found;
  if (const auto id = Strings::find(text_given(type, "type"))) {
    const std::span<const NodeId> indexed = entry.graph->find(*id);
    found.assign(indexed.begin(), indexed.end());
  }
  hand_out(entry, found, nodes, count);
}

void find_node(GraphEntry& entry, const char* name, bringup_ir_node* node) {
  const NodeId found = entry.graph->find_by_name(text_given(name, "name"));
  if (found == kNoNode) {
    throw_error(ErrorCode::kMissing, "graph ", in_quotes(entry.graph->name()),
                " has no node named ", in_quotes(name));
  }
  given(node, "node") = found;
}

void graph_inputs(GraphEntry& entry, const bringup_ir_value** values, uint32_t* count) {
  hand_out(entry, entry.graph->inputs(), values, count);
}

void graph_outputs(GraphEntry& entry, const bringup_ir_value** values, uint32_t* count) {
  hand_out(entry, entry.graph->outputs(), values, count);
}

void node_type(GraphEntry& entry, bringup_ir_node node, const char** type) {
  given(type, "type") = Strings::text(entry.graph->type(living(entry, node))).data();
}

void node_name(GraphEntry& entry, bringup_ir_node node, const char** name) {
  given(name, "name") = entry.graph->name_text(living(entry, node)).data();
}

void node_argument_count(GraphEntry& entry, bringup_ir_node node, uint32_t* count) {
  given(count, "count") = entry.graph->argument_count(living(entry, node));
}

void read_argument(GraphEntry& entry, NodeId node, uint32_t index, bringup_argument* argument) {
  check_argument(*entry.graph, node, index);
  given(argument, "argument") = argument_of(entry, item(entry.graph->arguments(node), index));
}

void node_argument(GraphEntry& entry, bringup_ir_node node, uint32_t index,
                   bringup_argument* argument) {
  read_argument(entry, living(entry, node), index, argument);
}

void node_argument_named(GraphEntry& entry, bringup_ir_node node, const char* name,
                         bringup_argument* argument) {
  const Operator& op = entry.graph->op(living(entry, node));
  const auto id = Strings::find(text_given(name, "name"));
  const auto index = id ? op.index_of(*id) : std::nullopt;
  if (!index) {
    throw_error(ErrorCode::kMissing, Strings::text(op.type), " has no parameter ", in_quotes(name));
  }
  read_argument(entry, node, *index, argument);
}

void node_inputs(GraphEntry& entry, bringup_ir_node node, const bringup_ir_value** values,
                 uint32_t* count) {
  std::vector<ValueId> reads;
  for_each_value(entry.graph->all_arguments(living(entry, node)),
                 [&](ValueId value) { reads.push_back(value); });
  hand_out(entry, reads, values, count);
}

void node_output_count(GraphEntry& entry, bringup_ir_node node, uint32_t* count) {
  given(count, "count") = entry.graph->output_count(living(entry, node));
}

void node_is_pure(GraphEntry& entry, bringup_ir_node node, int32_t* pure) {
  given(pure, "pure") = entry.graph->pure(living(entry, node)) ? 1 : 0;
}

void node_rule(GraphEntry& entry, bringup_ir_node node, const char** rule) {
  given(rule, "rule") = Strings::text(entry.graph->rule(living(entry, node))).data();
}

void node_origin(GraphEntry& entry, bringup_ir_node node, const char* const** names,
                 uint32_t* count) {
  const auto origin = entry.graph->attribute(living(entry, node), origin_attribute());
  const ArgumentSpan listed = origin ? origin->subspan(1) : ArgumentSpan();
  auto** copy = entry.array<const char*>(listed.size());
  for (size_t index = 0; index < listed.size(); ++index) {
    copy[index] = Strings::text(listed[index].id).data();
  }
  given(names, "names") = copy;
  given(count, "count") = static_cast<uint32_t>(listed.size());
}

void value_users(GraphEntry& entry, bringup_ir_value value, const bringup_ir_node** nodes,
                 uint32_t* count) {
  hand_out(entry, entry.graph->sorted_users(living(entry, value)), nodes, count);
}

bool is_given(const Graph& graph, NodeId node) {
  return &graph.op(node) == Operators::input() || &graph.op(node) == Operators::constant();
}

void value_desc(GraphEntry& entry, bringup_ir_value value, bringup_tensor_desc* desc) {
  const ValueId found = living(entry, value);
  const std::string name = in_quotes(entry.graph->name_text(found.node));
  if (entry.shapes_withheld && !is_given(*entry.graph, found.node)) {
    throw_error(ErrorCode::kInvalid, "the shape of ", name, " is inferred, which a pass of stage ",
                name_of(Stage::kBeforeInferShape), " may not read");
  }
  const TensorDesc* known = entry.graph->desc(found);
  if (known == nullptr) {
    throw_error(ErrorCode::kMissing, "nothing is known about the shape of ", name);
  }
  whole(desc, "desc");
  fill(entry, *known, *desc);
}

void node_constant(GraphEntry& entry, bringup_ir_node node, bringup_constant* constant) {
  const ConstantData* data = entry.graph->payload(living(entry, node));
  if (data == nullptr) {
    throw_error(ErrorCode::kMissing, "the data of ", in_quotes(entry.graph->name_text(node)),
                " are not known");
  }
  whole(constant, "constant");
  fill(entry, *data, *constant);
}

void node_supported(GraphEntry& entry, bringup_ir_node node, int32_t* supported,
                    const char** reason) {
  const auto unsupported_reason = entry.providers->supports(*entry.graph, living(entry, node));
  given(supported, "supported") = unsupported_reason ? 0 : 1;
  if (reason != nullptr) *reason = kept(unsupported_reason.value_or(""));
}

}  // namespace

void fill_reading_functions(bringup_engine_api& table) {
  table.graph_name = api<graph_name>;
  table.node_count = api<node_count>;
  table.first_node = api<first_node>;
  table.next_node = api<next_node>;
  table.find_nodes = api<find_nodes>;
  table.find_node = api<find_node>;
  table.graph_inputs = api<graph_inputs>;
  table.graph_outputs = api<graph_outputs>;
  table.node_type = api<node_type>;
  table.node_name = api<node_name>;
  table.node_argument_count = api<node_argument_count>;
  table.node_argument = api<node_argument>;
  table.node_argument_named = api<node_argument_named>;
  table.node_inputs = api<node_inputs>;
  table.node_output_count = api<node_output_count>;
  table.node_is_pure = api<node_is_pure>;
  table.node_rule = api<node_rule>;
  table.node_origin = api<node_origin>;
  table.value_users = api<value_users>;
  table.value_desc = api<value_desc>;
  table.node_constant = api<node_constant>;
  table.node_supported = api<node_supported>;
}

}  // namespace bringup::engine
