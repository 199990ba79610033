/* Three passes in C, one of each kind. Build it and put its folder on BRINGUP_PASS_PATH. */
#include <bringup/engine.h>
#include <string.h>

static const bringup_engine_api* engine;

static bringup_argument value_argument(bringup_ir_value value) {
  bringup_argument argument = {BRINGUP_ARGUMENT_VALUE, 0, {0}};
  argument.of.value = value;
  return argument;
}

/* A call of `type` on one or two values, at the end of a graph; its output goes to *result. */
static int32_t call(bringup_ir_graph graph, const char* type, const bringup_ir_value* reads,
                    uint32_t count, bringup_ir_value* result) {
  bringup_argument arguments[3];
  bringup_ir_node node = BRINGUP_NO_NODE;
  uint32_t index;
  int32_t status;
  for (index = 0; index < count; ++index) arguments[index] = value_argument(reads[index]);
  status = engine->add_node(graph, type, arguments, count, 1, BRINGUP_NO_NODE, &node);
  result->node = node;
  result->index = 0;
  return status;
}

/* 1. A graph pass: relu(relu(x)) is relu(x). */

static int32_t drop_relu_of_relu(void* instance, bringup_ir_graph graph,
                                 bringup_pass_context context) {
  const bringup_ir_node* nodes = NULL;
  uint32_t count = 0, index;
  int32_t status = engine->find_nodes(graph, "aten::relu", &nodes, &count);
  (void)instance;
  (void)context;
  for (index = 0; status == BRINGUP_ENGINE_OK && index < count; ++index) {
    const bringup_ir_value* reads = NULL;
    uint32_t read_count = 0;
    const char* producer = "";
    const bringup_ir_value output = {nodes[index], 0};
    status = engine->node_inputs(graph, nodes[index], &reads, &read_count);
    if (status != BRINGUP_ENGINE_OK) return status;
    status = engine->node_type(graph, reads[0].node, &producer);
    if (status != BRINGUP_ENGINE_OK || strcmp(producer, "aten::relu") != 0) continue;
    status = engine->replace_all_uses(graph, output, reads[0]);
    if (status == BRINGUP_ENGINE_OK) status = engine->erase_node(graph, nodes[index]);
  }
  return status;
}

/* 2. A pattern pass: a * b + c is addcmul(c, a, b). */

static int32_t mul_add_patterns(void* instance, bringup_pass_context context) {
  bringup_ir_graph graph = 0;
  bringup_ir_pattern pattern = 0;
  bringup_ir_value inputs[3], pair[2], sum;
  int32_t status = engine->graph_create("mul_add", &graph), index;
  (void)instance;
  for (index = 0; status == BRINGUP_ENGINE_OK && index < 3; ++index) {
    status = engine->add_input(graph, NULL, NULL, &inputs[index]);
  }
  if (status == BRINGUP_ENGINE_OK) status = call(graph, "aten::mul", inputs, 2, &pair[0]);
  pair[1] = inputs[2];
  if (status == BRINGUP_ENGINE_OK) status = call(graph, "aten::add", pair, 2, &sum);
  if (status == BRINGUP_ENGINE_OK) status = engine->set_outputs(graph, &sum, 1);
  if (status == BRINGUP_ENGINE_OK) status = engine->pattern_create(graph, NULL, &pattern);
  return status == BRINGUP_ENGINE_OK ? engine->add_pattern(context, pattern) : status;
}

static int32_t mul_add_replacement(void* instance, bringup_match match,
                                   bringup_pass_context context, bringup_ir_graph* replacement) {
  bringup_ir_value inputs[3], ordered[3], result;
  int32_t status = engine->graph_create("addcmul", replacement), index;
  (void)instance;
  (void)match;
  (void)context;
  for (index = 0; status == BRINGUP_ENGINE_OK && index < 3; ++index) {
    status = engine->add_input(*replacement, NULL, NULL, &inputs[index]);
  }
  ordered[0] = inputs[2];
  ordered[1] = inputs[0];
  ordered[2] = inputs[1];
  if (status == BRINGUP_ENGINE_OK) {
    status = call(*replacement, "aten::addcmul", ordered, 3, &result);
  }
  return status == BRINGUP_ENGINE_OK ? engine->set_outputs(*replacement, &result, 1) : status;
}

/* 3. A decompose pass: silu(x) is x * sigmoid(x). */

static int32_t split_silu(void* instance, bringup_ir_graph graph, bringup_ir_node node,
                          bringup_pass_context context, bringup_ir_graph* replacement) {
  bringup_ir_value pair[2], result;
  int32_t status = engine->graph_create("silu", replacement);
  (void)instance;
  (void)graph;
  (void)node;
  (void)context;
  if (status == BRINGUP_ENGINE_OK) status = engine->add_input(*replacement, "x", NULL, &pair[0]);
  if (status == BRINGUP_ENGINE_OK) status = call(*replacement, "aten::sigmoid", pair, 1, &pair[1]);
  if (status == BRINGUP_ENGINE_OK) status = call(*replacement, "aten::mul", pair, 2, &result);
  return status == BRINGUP_ENGINE_OK ? engine->set_outputs(*replacement, &result, 1) : status;
}

__attribute__((visibility("default"))) int32_t
bringup_register_passes(const bringup_engine_api* api) {
  static const char* const silu[] = {"aten::silu", NULL};
  bringup_pass_definition graph_pass = {0}, pattern_pass = {0}, decompose_pass = {0};
  int32_t status;
  engine = api;

  graph_pass.struct_size = sizeof(graph_pass);
  graph_pass.name = "DropReluOfRelu";
  graph_pass.kind = BRINGUP_PASS_GRAPH;
  graph_pass.stage = BRINGUP_AFTER_INFER_SHAPE;
  graph_pass.run = drop_relu_of_relu;

  pattern_pass.struct_size = sizeof(pattern_pass);
  pattern_pass.name = "MulAddToAddcmul";
  pattern_pass.kind = BRINGUP_PASS_PATTERN;
  pattern_pass.stage = BRINGUP_AFTER_INFER_SHAPE;
  pattern_pass.patterns = mul_add_patterns;
  pattern_pass.replacement = mul_add_replacement;

  decompose_pass.struct_size = sizeof(decompose_pass);
  decompose_pass.name = "SiluToSigmoid";
  decompose_pass.kind = BRINGUP_PASS_DECOMPOSE;
  decompose_pass.stage = BRINGUP_BEFORE_INFER_SHAPE;
  decompose_pass.op_types = silu;
  decompose_pass.replace_node = split_silu;

  status = api->register_pass(&graph_pass);
  if (status == BRINGUP_ENGINE_OK) status = api->register_pass(&pattern_pass);
  return status == BRINGUP_ENGINE_OK ? api->register_pass(&decompose_pass) : status;
}
