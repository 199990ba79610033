// libbringup_engine.so as a C++ program uses it: one export, a graph, a pass, a run.
#include <dlfcn.h>

#include "bringup/engine.h"
#include "check.h"

namespace {

const bringup_engine_api* engine = nullptr;

int32_t count_nodes(void* count, bringup_ir_graph graph, bringup_pass_context) {
  return engine->node_count(graph, static_cast<uint32_t*>(count));
}

}  // namespace

TEST(program_gets_the_table_and_runs_a_pass_over_its_graph) {
  void* library = dlopen(ENGINE_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  auto* get = reinterpret_cast<const bringup_engine_api* (*)(uint32_t)>(
      dlsym(library, "bringup_engine_get"));
  REQUIRE(get != nullptr);
  CHECK(get(BRINGUP_ENGINE_ABI + 1) == nullptr);
  engine = get(BRINGUP_ENGINE_ABI);
  REQUIRE(engine != nullptr);
  CHECK_EQ(engine->struct_size, sizeof(bringup_engine_api));

  bringup_ir_graph graph = 0;
  bringup_ir_value x{};
  CHECK_EQ(engine->graph_create("g", &graph), BRINGUP_ENGINE_OK);
  CHECK_EQ(engine->add_input(graph, "x", nullptr, &x), BRINGUP_ENGINE_OK);
  CHECK_EQ(engine->set_outputs(graph, &x, 1), BRINGUP_ENGINE_OK);
  uint32_t count = 0;
  bringup_pass_definition definition{};
  definition.struct_size = sizeof(definition);
  definition.name = "Count";
  definition.user = &count;
  definition.run = count_nodes;
  CHECK_EQ(engine->register_pass(&definition), BRINGUP_ENGINE_OK);
  bringup_run_report report = 0;
  CHECK_EQ(engine->run_passes(graph, nullptr, &report), BRINGUP_ENGINE_OK);
  CHECK_EQ(count, 2u);
  CHECK_EQ(engine->report_release(report), BRINGUP_ENGINE_OK);
  CHECK_EQ(engine->unregister_pass("Count", nullptr), BRINGUP_ENGINE_OK);
  CHECK_EQ(engine->graph_release(graph), BRINGUP_ENGINE_OK);
}
