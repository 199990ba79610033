/* A library with two passes in C: a graph pass that counts its runs, and a decompose pass. */
#include <bringup/engine.h>
#include <stddef.h>

static const bringup_engine_api* engine;

static int32_t run(void* instance, bringup_ir_graph graph, bringup_pass_context context) {
  uint32_t count = 0;
  (void)instance;
  (void)context;
  return engine->node_count(graph, &count);
}

static int32_t replace_node(void* instance, bringup_ir_graph graph, bringup_ir_node node,
                            bringup_pass_context context, bringup_ir_graph* replacement) {
  bringup_ir_value in, out;
  bringup_argument argument = {BRINGUP_ARGUMENT_VALUE, 0, {0}};
  bringup_ir_node made = BRINGUP_NO_NODE;
  int32_t status;
  (void)instance;
  (void)graph;
  (void)node;
  (void)context;
  status = engine->graph_create("tanh", replacement);
  if (status == BRINGUP_ENGINE_OK) status = engine->add_input(*replacement, "in", NULL, &in);
  if (status != BRINGUP_ENGINE_OK) return status;
  argument.of.value = in;
  status = engine->add_node(*replacement, "t::tanh", &argument, 1, 1, BRINGUP_NO_NODE, &made);
  if (status != BRINGUP_ENGINE_OK) return status;
  out.node = made;
  out.index = 0;
  return engine->set_outputs(*replacement, &out, 1);
}

__attribute__((visibility("default"))) int32_t
bringup_register_passes(const bringup_engine_api* api) {
  static const char* const types[] = {"t::relu", NULL};
  bringup_pass_definition graph_pass = {0};
  bringup_pass_definition decompose = {0};
  int32_t status;
  engine = api;
  graph_pass.struct_size = sizeof(graph_pass);
  graph_pass.name = "CountInC";
  graph_pass.kind = BRINGUP_PASS_GRAPH;
  graph_pass.stage = BRINGUP_AFTER_INFER_SHAPE;
  graph_pass.run = run;
  decompose.struct_size = sizeof(decompose);
  decompose.name = "TanhInC";
  decompose.kind = BRINGUP_PASS_DECOMPOSE;
  decompose.stage = BRINGUP_AFTER_INFER_SHAPE;
  decompose.op_types = types;
  decompose.replace_node = replace_node;
  status = api->register_pass(&graph_pass);
  return status == BRINGUP_ENGINE_OK ? api->register_pass(&decompose) : status;
}
