// The C API: making graphs, and the providers that a program gives them.
#include "engine/capi/access.h"
#include "engine/capi/api.h"
#include "engine/capi/marshal.h"
#include "engine/graph/native_host.h"
#include "engine/graph/node_factory.h"

namespace bringup::engine {
namespace {

// A provider that is asked about a graph cannot ask about it in turn.
const Providers& no_providers() {
  static const Providers* const none = new Providers;
  return *none;
}

// Calls a provider; its failure becomes an EngineError.
template <class Call>
void ask(const char* provider, Call&& call) {
  const std::string where = std::string("the provider of ") + provider;
  const int32_t status = foreign(where, call);
  const std::string why = take_hook_error(status);
  if (status == BRINGUP_ENGINE_OK) return;
  throw_error(status == BRINGUP_ENGINE_SCHEMA ? ErrorCode::kSchema : ErrorCode::kFailed, where,
              " returned status ", status, (why.empty() ? "" : ": " + why));
}

std::vector<uint32_t> bits_of(uint64_t mask, uint32_t count) {
  std::vector<uint32_t> bits;
  for (uint32_t index = 0; index < std::min<uint32_t>(count, 64); ++index) {
    if ((mask >> index) & 1) bits.push_back(index);
  }
  return bits;
}

const Operator* operator_of(const bringup_operator_facts& facts) {
  if (facts.parameter_count > 0) {
    given(facts.parameter_names, "parameter_names");
    given(facts.parameter_types, "parameter_types");
  }
  Operator op;
  op.type = Strings::intern(text_given(facts.type, "the type of an operator"));
  for (uint32_t index = 0; index < facts.parameter_count; ++index) {
    op.parameters.push_back(
        {Strings::intern(text_given(facts.parameter_names[index], "the name of a parameter")),
         Strings::intern(text_given(facts.parameter_types[index], "the type of a parameter"))});
  }
  op.output_count = facts.output_count;
  op.mutates = bits_of(facts.mutates, facts.parameter_count);
  op.aliases = bits_of(facts.aliases, facts.parameter_count);
  op.random = facts.random != 0;
  op.kept = facts.kept != 0;
  op.opaque = facts.opaque != 0;
  op.commutes = facts.commutes != 0;
  op.commutes_if_one = facts.commutes_if_one;
  return Operators::intern(std::move(op));
}

const Operator* ask_schema(const bringup_engine_providers& given_providers, StringId type,
                           ArgumentList& arguments) {
  GraphEntry scratch;
  std::vector<bringup_argument> shown;
  for (size_t position = 0; position < arguments.items().size();) {
    const ArgumentSpan next = item_at(arguments.items(), position);
    shown.push_back(argument_of(scratch, next));
    position += next.size();
  }
  bringup_operator_facts facts{};
  facts.struct_size = sizeof(facts);
  facts.output_count = 1;
  facts.commutes_if_one = kAlwaysCommutes;
  ask("schema", [&] {
    return given_providers.schema(given_providers.user, Strings::text(type).data(), shown.data(),
                                  static_cast<uint32_t>(shown.size()), &facts);
  });
  return operator_of(facts);
}

void ask_shapes(const bringup_engine_providers& given_providers, Graph& graph, NodeId node) {
  const uint32_t count = graph.output_count(node);
  std::vector<bringup_tensor_desc> descs(count);
  for (bringup_tensor_desc& desc : descs) {
    desc.struct_size = sizeof(desc);
    desc.rank = -1;
  }
  const LentGraph lent(graph, no_providers(), false);
  ask("shape inference", [&] {
    return given_providers.infer_shape(given_providers.user, lent.handle(), node, descs.data(),
                                       count);
  });
  for (uint32_t index = 0; index < count; ++index) {
    if (descs[index].rank < 0) {
      describe(graph, {node, index}, nullptr);
    } else {
      const TensorDesc desc = desc_of(descs[index]);
      describe(graph, {node, index}, &desc);
    }
  }
}

std::optional<std::string> ask_support(const bringup_engine_providers& given_providers,
                                       const Graph& graph, NodeId node) {
  // The provider only reads: a change through this handle is its author's mistake, but defined.
  const LentGraph lent(const_cast<Graph&>(graph), no_providers(), false);
  int32_t supported = 0;
  const char* reason = nullptr;
  ask("node support", [&] {
    return given_providers.supports(given_providers.user, lent.handle(), node, &supported, &reason);
  });
  if (supported != 0) return std::nullopt;
  return reason != nullptr ? reason : "no reason was given";
}

std::vector<ConstantData> ask_value(const bringup_engine_providers& given_providers,
                                    const Graph& graph, NodeId node) {
  const uint32_t count = graph.output_count(node);
  std::vector<bringup_constant> constants(count);
  for (bringup_constant& constant : constants) constant.struct_size = sizeof(constant);
  const LentGraph lent(const_cast<Graph&>(graph), no_providers(), false);
  ask("evaluation", [&] {
    return given_providers.evaluate(given_providers.user, lent.handle(), node, constants.data(),
                                    count);
  });
  std::vector<ConstantData> results;
  for (const bringup_constant& constant : constants) results.push_back(constant_of(constant));
  return results;
}

std::shared_ptr<const Providers> providers_of(const bringup_engine_providers& table) {
  auto made = std::make_shared<Providers>();
  if (table.schema != nullptr) {
    made->schema = [table](const Graph&, StringId type, ArgumentList& arguments) {
      return ask_schema(table, type, arguments);
    };
  }
  if (table.infer_shape != nullptr) {
    made->infer_shape = [table](Graph& graph, NodeId node) { ask_shapes(table, graph, node); };
  }
  if (table.supports != nullptr) {
    made->supports = [table](const Graph& graph, NodeId node) {
      return ask_support(table, graph, node);
    };
  }
  if (table.evaluate != nullptr) {
    made->evaluate = [table](const Graph& graph, NodeId node) {
      return ask_value(table, graph, node);
    };
  }
  return made;
}

// Inside of a hook those of its graph, if they know others. A copy: graphs may outlive the hook.
std::shared_ptr<const Providers> current_providers() {
  const PassContext* context = LentContext::current();
  if (context != nullptr && !context->providers.only_rewritten) {
    return std::make_shared<const Providers>(context->providers);
  }
  return std::make_shared<const Providers>();
}

void graph_create(const char* name, bringup_ir_graph* graph) {
  given(graph, "graph");
  auto entry = std::make_shared<GraphEntry>();
  entry->graph = make_native_graph(name != nullptr ? name : "graph");
  entry->providers = current_providers();
  *graph = graph_handles().add(std::move(entry));
}

void graph_release(bringup_ir_graph graph) { take_graph(graph); }

void graph_release_arrays(GraphEntry& entry) { entry.memory.release(); }

void graph_set_providers(GraphEntry& entry, const bringup_engine_providers* providers) {
  if (entry.lent) {
    throw_error(ErrorCode::kInvalid,
                "the providers of the graph that is being rewritten are its host's");
  }
  entry.providers = providers_of(whole(providers, "providers"));
}

void add_input(GraphEntry& entry, const char* name, const bringup_tensor_desc* desc,
               bringup_ir_value* value) {
  given(value, "value");
  std::optional<TensorDesc> known;
  if (desc != nullptr) known = desc_of(*desc);
  if (entry.lent) {
    throw_error(ErrorCode::kPass, "a pass cannot give the graph that it rewrites a new input");
  }
  const NodeId node = entry.graph->add_input(Strings::intern(name != nullptr ? name : "input"));
  if (known) describe(*entry.graph, {node, 0}, &*known);
  *value = {node, 0};
}

void add_constant(GraphEntry& entry, const char* name, const bringup_constant* constant,
                  bringup_ir_value* value) {
  given(value, "value");
  ConstantData data = constant_of(given(constant, "constant"));
  const StringId base = Strings::intern(name != nullptr ? name : "constant");
  *value = {insert_constant(*entry.graph, base, std::move(data), *entry.providers), 0};
}

void add_outer(GraphEntry& made, bringup_ir_graph graph, bringup_ir_value value,
               bringup_ir_value* outer) {
  const auto entry = graph_of(graph);
  given(outer, "outer");
  if (made.lent || made.graph == entry->graph) {
    throw_error(ErrorCode::kInvalid, "a replacement is a graph of its own");
  }
  const ValueId found = living(*entry, value);
  ArgumentList said;
  put_outer(said, *entry->graph, found);
  const NodeId node = made.graph->insert(outer_operator(), entry->graph->name(found.node),
                                         {said.items(), said.count()}, 1, made.graph->last());
  const bool is_known = !entry->shapes_withheld && entry->graph->desc(found) != nullptr;
  if (is_known) describe(*made.graph, {node, 0}, entry->graph->desc(found));
  *outer = {node, 0};
}

// The operator of a new node, and its arguments as its schema has them.
const Operator* bind(const GraphEntry& entry, StringId type, ArgumentList& arguments) {
  if (entry.providers->schema) return entry.providers->schema(*entry.graph, type, arguments);
  Operator op;
  op.type = type;
  op.output_count = kOutputsDependOnCall;
  return Operators::intern(std::move(op));
}

void add_node(GraphEntry& entry, const char* type, const bringup_argument* arguments,
              uint32_t count, uint32_t outputs, bringup_ir_node before, bringup_ir_node* node) {
  given(node, "node");
  if (outputs > (1u << 16)) throw_error(ErrorCode::kInvalid, "too many outputs");
  const StringId name = Strings::intern(text_given(type, "type"));
  if (Strings::text(name).empty() || Strings::text(name).starts_with("ir::")) {
    throw_error(ErrorCode::kInvalid, in_quotes(type), " is no type of an operator");
  }
  ArgumentList list = list_of(entry.pieces, arguments, count);
  check_objects(entry, list.items());
  const Operator* op = bind(entry, name, list);
  const uint32_t output_count =
      op->output_count >= 0 ? static_cast<uint32_t>(op->output_count) : std::max(outputs, 1u);
  const NodeId place = before == BRINGUP_NO_NODE ? entry.graph->last() : living(entry, before);
  const NodeId made = entry.graph->insert(op, base_name_of(op->type), {list.items(), list.count()},
                                          output_count, place);
  try {
    infer_if_known(*entry.graph, made, *entry.providers);
  } catch (...) {
    entry.graph->erase(made);
    throw;
  }
  *node = made;
}

void set_outputs(GraphEntry& entry, const bringup_ir_value* values, uint32_t count) {
  if (count > 0) given(values, "values");
  ArgumentList list;
  for (uint32_t index = 0; index < count; ++index) {
    list.put(Argument::of_value(living(entry, values[index])));
  }
  entry.graph->set_outputs({list.items(), list.count()});
}

}  // namespace

void fill_building_functions(bringup_engine_api& table) {
  table.graph_create = api<graph_create>;
  table.graph_release = api<graph_release>;
  table.graph_release_arrays = api<graph_release_arrays>;
  table.graph_set_providers = api<graph_set_providers>;
  table.add_input = api<add_input>;
  table.add_constant = api<add_constant>;
  table.add_node = api<add_node>;
  table.add_outer = api<add_outer>;
  table.set_outputs = api<set_outputs>;
}

}  // namespace bringup::engine
