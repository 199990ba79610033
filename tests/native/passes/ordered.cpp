// Control edges in a pattern and its replacement, and in what is replaced by hand.
#include <bringup/engine.h>

#include <stdexcept>
#include <vector>

namespace {

const bringup_engine_api* engine;

void check(int32_t status) {
  if (status != BRINGUP_ENGINE_OK) throw std::runtime_error(engine->last_error());
}

bringup_ir_value input(bringup_ir_graph graph) {
  bringup_ir_value value{};
  check(engine->add_input(graph, nullptr, nullptr, &value));
  return value;
}

bringup_ir_value call(bringup_ir_graph graph, const char* type,
                      const std::vector<bringup_ir_value>& reads) {
  std::vector<bringup_argument> arguments;
  for (const bringup_ir_value value : reads) {
    arguments.push_back({BRINGUP_ARGUMENT_VALUE, 0, {}});
    arguments.back().of.value = value;
  }
  bringup_ir_node node = BRINGUP_NO_NODE;
  check(engine->add_node(graph, type, arguments.data(), static_cast<uint32_t>(arguments.size()), 1,
                         BRINGUP_NO_NODE, &node));
  return {node, 0};
}

// join(first(x), second(y)), the second after the first, which in turn runs after what computes y.
bringup_ir_graph ordered(const char* first, const char* second) {
  bringup_ir_graph graph = 0;
  check(engine->graph_create("ordered", &graph));
  const bringup_ir_value x = input(graph), y = input(graph);
  const bringup_ir_value one = call(graph, first, {x}), two = call(graph, second, {y});
  check(engine->add_control_edge(graph, one.node, two.node));
  check(engine->add_control_edge(graph, y.node, one.node));
  const bringup_ir_value result = call(graph, "demo::join", {one, two});
  check(engine->set_outputs(graph, &result, 1));
  return graph;
}

int32_t patterns(void*, bringup_pass_context context) {
  bringup_ir_pattern pattern = 0;
  check(engine->pattern_create(ordered("demo::a", "demo::b"), "ordered", &pattern));
  return engine->add_pattern(context, pattern);
}

int32_t replacement(void*, bringup_match, bringup_pass_context, bringup_ir_graph* made) {
  *made = ordered("demo::c", "demo::d");
  return BRINGUP_ENGINE_OK;
}

// Every demo::e becomes demo::f.
int32_t run(void*, bringup_ir_graph graph, bringup_pass_context) {
  const bringup_ir_node* nodes = nullptr;
  uint32_t count = 0;
  check(engine->find_nodes(graph, "demo::e", &nodes, &count));
  for (uint32_t index = 0; index < count; ++index) {
    const bringup_ir_value* reads = nullptr;
    uint32_t read_count = 0;
    check(engine->node_inputs(graph, nodes[index], &reads, &read_count));
    const bringup_ir_value leaves{nodes[index], 0};
    const bringup_boundary part{sizeof(part), 1, reads, &leaves, 1};
    bringup_ir_graph made = 0;
    check(engine->graph_create("f", &made));
    const bringup_ir_value result = call(made, "demo::f", {input(made)});
    check(engine->set_outputs(made, &result, 1));
    check(engine->boundary_replace(graph, &part, made, nullptr, nullptr));
  }
  return BRINGUP_ENGINE_OK;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int32_t
bringup_register_passes(const bringup_engine_api* api) {
  if (!BRINGUP_ENGINE_HAS(api, add_control_edge)) return BRINGUP_ENGINE_INVALID;
  engine = api;
  bringup_pass_definition pattern{}, by_hand{};
  pattern.name = "Ordered";
  pattern.kind = BRINGUP_PASS_PATTERN;
  pattern.patterns = patterns;
  pattern.replacement = replacement;
  by_hand.name = "ByHand";
  by_hand.kind = BRINGUP_PASS_GRAPH;
  by_hand.run = run;
  for (bringup_pass_definition* definition : {&pattern, &by_hand}) {
    definition->struct_size = sizeof(*definition);
    definition->stage = BRINGUP_AFTER_INFER_SHAPE;
    check(api->register_pass(definition));
  }
  return BRINGUP_ENGINE_OK;
}
