// Passes whose patterns have every piece that a plain graph cannot say, and one that replaces a
// part by its boundary. Tests run them on torch graphs.
#include <bringup/engine.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace {

const bringup_engine_api* engine = nullptr;

void check(int32_t status) {
  if (status != BRINGUP_ENGINE_OK) throw std::runtime_error(engine->last_error());
}

bringup_argument of(bringup_ir_value value) {
  bringup_argument argument{BRINGUP_ARGUMENT_VALUE, 0, {}};
  argument.of.value = value;
  return argument;
}

template <class Struct>
Struct sized(Struct made) {
  made.struct_size = sizeof(made);
  return made;
}

// A graph under construction.
struct Draft {
  bringup_ir_graph graph = 0;
  explicit Draft(const char* name) { check(engine->graph_create(name, &graph)); }

  bringup_ir_value input(const char* name) {
    bringup_ir_value value{};
    check(engine->add_input(graph, name, nullptr, &value));
    return value;
  }
  bringup_ir_value call(const char* type, const std::vector<bringup_argument>& arguments) {
    bringup_ir_node node = BRINGUP_NO_NODE;
    check(engine->add_node(graph, type, arguments.data(), static_cast<uint32_t>(arguments.size()),
                           1, BRINGUP_NO_NODE, &node));
    return {node, 0};
  }
  bringup_ir_graph finish(bringup_ir_value output) {
    check(engine->set_outputs(graph, &output, 1));
    return graph;
  }
  bringup_ir_pattern pattern(bringup_ir_value output) {
    bringup_ir_pattern made = 0;
    check(engine->pattern_create(finish(output), nullptr, &made));
    return made;
  }
};

// relu or tanh of mm(x, w), with or without a bias of one dimension, is the same of linear.
namespace linear {

int32_t patterns(void*, bringup_pass_context context) {
  Draft wanted("linear");
  const bringup_ir_value x = wanted.input("x"), w = wanted.input("w"), c = wanted.input("c");
  static const char* const dtypes[] = {"float32", "float64", nullptr};
  const bringup_size rows[] = {{BRINGUP_SIZE_NAMED, 0, "T"}, {BRINGUP_SIZE_ANY, 0, nullptr}};
  auto form = sized(bringup_tensor_form{});
  form.dtypes = dtypes;
  form.sizes = rows;
  form.size_count = 2;
  check(engine->pattern_where(wanted.graph, x, &form));
  const int32_t rank = 1;
  form = sized(bringup_tensor_form{});
  form.ranks = &rank;
  form.rank_count = 1;
  check(engine->pattern_where(wanted.graph, c, &form));
  const bringup_ir_value sum =
      wanted.call("aten::add.Tensor", {of(wanted.call("aten::mm", {of(x), of(w)})), of(c)});
  bringup_ir_value maybe{}, either{};
  check(engine->pattern_optional(wanted.graph, sum, nullptr, "bias", &maybe));
  const bringup_argument both[] = {of(wanted.call("aten::relu", {of(maybe)})),
                                   of(wanted.call("aten::tanh", {of(maybe)}))};
  check(engine->pattern_one_of(wanted.graph, both, 2, "activation", &either));
  return engine->add_pattern(context, wanted.pattern(either));
}

int32_t replacement(void*, bringup_match match, bringup_pass_context, bringup_ir_graph* made) {
  uint32_t activation = 0;
  bringup_argument rows{};
  check(engine->match_chosen(match, "activation", &activation));
  check(engine->match_named(match, "T", &rows));
  if (rows.kind != BRINGUP_ARGUMENT_INT && rows.kind != BRINGUP_ARGUMENT_SYMBOL) return 40;
  Draft draft("linear");
  const bringup_ir_value x = draft.input("x"), w = draft.input("w"), c = draft.input("c");
  const bringup_ir_value turned = draft.call("aten::t", {of(w)});
  const bringup_ir_value product = draft.call("aten::linear", {of(x), of(turned), of(c)});
  *made = draft.finish(draft.call(activation == 0 ? "aten::relu" : "aten::tanh", {of(product)}));
  return BRINGUP_ENGINE_OK;
}

}  // namespace linear

// cat([relu(a), relu(b), ...], dim) is relu(cat([a, b, ...], dim)).
struct ReluAfterCat {
  bringup_ir_value read{};  // in the pattern of an item

  static void* create(void*) { return new ReluAfterCat; }
  static void destroy(void* self) { delete static_cast<ReluAfterCat*>(self); }

  static int32_t patterns(void* self, bringup_pass_context context) {
    Draft item("item"), wanted("cat");
    auto& read = static_cast<ReluAfterCat*>(self)->read;
    read = item.input("x");
    auto list = sized(bringup_list_piece{});
    list.name = "xs";
    list.at_least = 2;
    list.each = item.pattern(item.call("aten::relu", {of(read)}));
    auto any = sized(bringup_any_piece{});
    any.name = "dim";
    any.kinds = 1u << BRINGUP_ARGUMENT_INT;
    bringup_argument xs{}, dim{};
    check(engine->pattern_list(wanted.graph, &list, &xs));
    check(engine->pattern_any(wanted.graph, &any, &dim));
    return engine->add_pattern(context, wanted.pattern(wanted.call("aten::cat", {xs, dim})));
  }

  static int32_t replacement(void* self, bringup_match match, bringup_pass_context,
                             bringup_ir_graph* made) {
    Draft draft("cat");
    bringup_ir_graph graph = 0;
    uint32_t count = 0;
    check(engine->match_graph(match, &graph));
    check(engine->match_item_count(match, "xs", &count));
    std::vector<bringup_argument> items;
    for (uint32_t index = 0; index < count; ++index) {
      bringup_match item = 0;
      bringup_ir_value value{}, outer{};
      check(engine->match_item(match, "xs", index, &item));
      check(engine->match_value(item, static_cast<ReluAfterCat*>(self)->read, &value));
      check(engine->add_outer(draft.graph, graph, value, &outer));
      items.push_back(of(outer));
    }
    bringup_argument list{BRINGUP_ARGUMENT_LIST, count, {}}, dim{};
    list.of.items = items.data();
    check(engine->match_named(match, "dim", &dim));
    const bringup_ir_value joined = draft.call("aten::cat", {list, dim});
    *made = draft.finish(draft.call("aten::relu", {of(joined)}));
    return BRINGUP_ENGINE_OK;
  }
};

// x * 1 is x, nearly. Captures x under two names.
namespace scale {

int32_t patterns(void*, bringup_pass_context context) {
  Draft wanted("scale");
  const bringup_ir_value x = wanted.input("x");
  bringup_argument one{BRINGUP_ARGUMENT_INT, 0, {}}, factor{};
  one.of.integer = 1;
  auto constant = sized(bringup_constant_piece{});
  constant.name = "factor";
  constant.values = &one;
  constant.value_count = 1;
  constant.rtol = 1e-6;
  check(engine->pattern_constant(wanted.graph, &constant, &factor));
  const bringup_ir_pattern made = wanted.pattern(wanted.call("aten::mul.Tensor", {of(x), factor}));
  for (const char* name : {"scaled", "kept"}) check(engine->pattern_capture(made, x, name));
  return engine->add_pattern(context, made);
}

int32_t replacement(void*, bringup_match match, bringup_pass_context, bringup_ir_graph* made) {
  bringup_argument factor{}, scaled{}, kept{};
  check(engine->match_named(match, "factor", &factor));
  check(engine->match_named(match, "scaled", &scaled));
  check(engine->match_named(match, "kept", &kept));
  if (scaled.of.value.node != kept.of.value.node) return 41;
  Draft draft("scale");
  *made = draft.finish(draft.input("x"));
  return BRINGUP_ENGINE_OK;
}

}  // namespace scale

// exp(neg(x)) is reciprocal(exp(x)): a part that a graph pass picks and replaces.
int32_t replace_parts(void*, bringup_ir_graph graph, bringup_pass_context) {
  const bringup_ir_node* nodes = nullptr;
  uint32_t count = 0;
  check(engine->find_nodes(graph, "aten::exp", &nodes, &count));
  for (uint32_t index = 0; index < count; ++index) {
    const bringup_ir_value* reads = nullptr;
    const char* type = "";
    uint32_t read_count = 0;
    check(engine->node_inputs(graph, nodes[index], &reads, &read_count));
    check(engine->node_type(graph, reads[0].node, &type));
    if (std::string(type) != "aten::neg") continue;
    check(engine->node_inputs(graph, reads[0].node, &reads, &read_count));
    const bringup_ir_value leaves = {nodes[index], 0};
    auto boundary = sized(bringup_boundary{});
    boundary.inputs = reads;
    boundary.input_count = 1;
    boundary.outputs = &leaves;
    boundary.output_count = 1;
    Draft draft("reciprocal");
    const bringup_ir_value power = draft.call("aten::exp", {of(draft.input("x"))});
    const bringup_ir_graph made = draft.finish(draft.call("aten::reciprocal", {of(power)}));
    const int32_t status = engine->boundary_replace(graph, &boundary, made, nullptr, nullptr);
    if (status == BRINGUP_ENGINE_OK) continue;
    check(engine->graph_release(made));
    return status;
  }
  return BRINGUP_ENGINE_OK;
}

bringup_pass_definition named(const char* name, int32_t kind) {
  auto definition = sized(bringup_pass_definition{});
  definition.name = name;
  definition.kind = kind;
  definition.stage = BRINGUP_AFTER_INFER_SHAPE;
  return definition;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int32_t
bringup_register_passes(const bringup_engine_api* api) {
  engine = api;
  bringup_pass_definition fuse = named("MmToLinear", BRINGUP_PASS_PATTERN);
  fuse.patterns = linear::patterns;
  fuse.replacement = linear::replacement;

  bringup_pass_definition cat = named("ReluAfterCat", BRINGUP_PASS_PATTERN);
  cat.create = ReluAfterCat::create;
  cat.destroy = ReluAfterCat::destroy;
  cat.patterns = ReluAfterCat::patterns;
  cat.replacement = ReluAfterCat::replacement;

  bringup_pass_definition unscale = named("DropUnitScale", BRINGUP_PASS_PATTERN);
  unscale.patterns = scale::patterns;
  unscale.replacement = scale::replacement;

  bringup_pass_definition parts = named("ReciprocalOfExp", BRINGUP_PASS_GRAPH);
  parts.run = replace_parts;

  for (const bringup_pass_definition* definition : {&fuse, &cat, &unscale, &parts}) {
    check(api->register_pass(definition));
  }
  return BRINGUP_ENGINE_OK;
}
