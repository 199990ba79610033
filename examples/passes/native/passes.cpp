// Three passes in C++, one of each kind. A hook may throw: the pass then fails with that text.
#include <bringup/engine.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace {

const bringup_engine_api* engine = nullptr;

// Turns a status into an exception, which the engine reports as the failure of the pass.
void check(int32_t status) {
  if (status != BRINGUP_ENGINE_OK) throw std::runtime_error(engine->last_error());
}

bringup_argument of(bringup_ir_value value) {
  bringup_argument argument{BRINGUP_ARGUMENT_VALUE, 0, {}};
  argument.of.value = value;
  return argument;
}

bringup_argument of(int64_t number) {
  bringup_argument argument{BRINGUP_ARGUMENT_INT, 0, {}};
  argument.of.integer = number;
  return argument;
}

// A graph under construction.
class Builder {
 public:
  explicit Builder(const char* name) { check(engine->graph_create(name, &graph_)); }

  bringup_ir_value input() {
    bringup_ir_value value{};
    check(engine->add_input(graph_, nullptr, nullptr, &value));
    return value;
  }

  bringup_ir_value call(const char* type, const std::vector<bringup_argument>& arguments) {
    bringup_ir_node node = BRINGUP_NO_NODE;
    check(engine->add_node(graph_, type, arguments.data(), static_cast<uint32_t>(arguments.size()),
                           1, BRINGUP_NO_NODE, &node));
    return {node, 0};
  }

  bringup_ir_graph finish(bringup_ir_value result) {
    check(engine->set_outputs(graph_, &result, 1));
    return graph_;
  }

 private:
  bringup_ir_graph graph_ = 0;
};

std::vector<bringup_ir_value> reads(bringup_ir_graph graph, bringup_ir_node node) {
  const bringup_ir_value* values = nullptr;
  uint32_t count = 0;
  check(engine->node_inputs(graph, node, &values, &count));
  return {values, values + count};
}

// 1. A graph pass: neg(neg(x)) is x.
int32_t drop_double_neg(void*, bringup_ir_graph graph, bringup_pass_context) {
  const bringup_ir_node* nodes = nullptr;
  uint32_t count = 0;
  check(engine->find_nodes(graph, "aten::neg", &nodes, &count));
  for (uint32_t index = 0; index < count; ++index) {
    const bringup_ir_value inner = reads(graph, nodes[index])[0];
    const char* type = "";
    check(engine->node_type(graph, inner.node, &type));
    if (std::string(type) != "aten::neg") continue;
    check(engine->replace_all_uses(graph, {nodes[index], 0}, reads(graph, inner.node)[0]));
    check(engine->erase_node(graph, nodes[index]));
    const bringup_ir_node* readers = nullptr;
    uint32_t reader_count = 0;
    check(engine->value_users(graph, inner, &readers, &reader_count));
    if (reader_count == 0) check(engine->erase_node(graph, inner.node));
  }
  return BRINGUP_ENGINE_OK;
}

// 2. A pattern pass: mm(a, b) + bias is addmm(bias, a, b), for a bias of one dimension. Its state
// lasts for one run over one graph.
class MmAdd {
 public:
  static void* create(void*) { return new MmAdd; }
  static void destroy(void* self) { delete static_cast<MmAdd*>(self); }

  static int32_t patterns(void* self, bringup_pass_context context) {
    Builder builder("mm_add");
    const bringup_ir_value a = builder.input(), b = builder.input();
    auto& pass = *static_cast<MmAdd*>(self);
    pass.bias_ = builder.input();
    const bringup_ir_value product = builder.call("aten::mm", {of(a), of(b)});
    const bringup_ir_value sum = builder.call("aten::add", {of(product), of(pass.bias_)});
    bringup_ir_pattern pattern = 0;
    check(engine->pattern_create(builder.finish(sum), "mm_add", &pattern));
    return engine->add_pattern(context, pattern);
  }

  static int32_t meet(void* self, bringup_match match, bringup_pass_context, int32_t* met) {
    bringup_ir_graph graph = 0;
    bringup_ir_value bias{};
    bringup_tensor_desc desc{};
    desc.struct_size = sizeof(desc);
    check(engine->match_graph(match, &graph));
    check(engine->match_value(match, static_cast<MmAdd*>(self)->bias_, &bias));
    check(engine->value_desc(graph, bias, &desc));
    *met = desc.rank == 1 ? 1 : 0;
    return BRINGUP_ENGINE_OK;
  }

  static int32_t replacement(void*, bringup_match, bringup_pass_context,
                             bringup_ir_graph* replacement) {
    Builder builder("addmm");
    const bringup_ir_value a = builder.input(), b = builder.input(), bias = builder.input();
    *replacement = builder.finish(builder.call("aten::addmm", {of(bias), of(a), of(b)}));
    return BRINGUP_ENGINE_OK;
  }

 private:
  bringup_ir_value bias_{};  // in the pattern
};

// 3. A decompose pass: hardswish(x) is x * clamp(x + 3, 0, 6) / 6.
int32_t split_hardswish(void*, bringup_ir_graph, bringup_ir_node, bringup_pass_context,
                        bringup_ir_graph* replacement) {
  Builder builder("hardswish");
  const bringup_ir_value x = builder.input();
  const bringup_ir_value shifted = builder.call("aten::add", {of(x), of(int64_t{3})});
  const bringup_ir_value clamped =
      builder.call("aten::clamp", {of(shifted), of(int64_t{0}), of(int64_t{6})});
  const bringup_ir_value scaled = builder.call("aten::mul", {of(x), of(clamped)});
  *replacement = builder.finish(builder.call("aten::div", {of(scaled), of(int64_t{6})}));
  return BRINGUP_ENGINE_OK;
}

bringup_pass_definition named(const char* name, int32_t kind) {
  bringup_pass_definition definition{};
  definition.struct_size = sizeof(definition);
  definition.name = name;
  definition.kind = kind;
  definition.stage = BRINGUP_AFTER_INFER_SHAPE;
  return definition;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int32_t
bringup_register_passes(const bringup_engine_api* api) {
  engine = api;
  bringup_pass_definition neg = named("DropDoubleNeg", BRINGUP_PASS_GRAPH);
  neg.run = drop_double_neg;

  bringup_pass_definition mm_add = named("MmAddToAddmm", BRINGUP_PASS_PATTERN);
  mm_add.class_name = "MmAdd";
  mm_add.create = MmAdd::create;
  mm_add.destroy = MmAdd::destroy;
  mm_add.patterns = MmAdd::patterns;
  mm_add.meet_requirements = MmAdd::meet;
  mm_add.replacement = MmAdd::replacement;

  static const char* const hardswish_types[] = {"aten::hardswish", nullptr};
  bringup_pass_definition hardswish = named("HardswishToClamp", BRINGUP_PASS_DECOMPOSE);
  hardswish.op_types = hardswish_types;
  hardswish.replace_node = split_hardswish;

  for (const bringup_pass_definition* definition : {&neg, &mm_add, &hardswish}) {
    check(api->register_pass(definition));
  }
  return BRINGUP_ENGINE_OK;
}
