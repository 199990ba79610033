// Wants a name that the library good.c has.
#include "bringup/engine.h"

extern "C" __attribute__((visibility("default"))) int32_t
bringup_register_passes(const bringup_engine_api* api) {
  bringup_pass_definition definition{};
  definition.struct_size = sizeof(definition);
  definition.name = "Own";
  definition.run = [](void*, bringup_ir_graph, bringup_pass_context) { return 0; };
  const int32_t status = api->register_pass(&definition);
  if (status != BRINGUP_ENGINE_OK) return status;
  definition.name = "CountInC";
  const int32_t second = api->register_pass(&definition);
  if (second != BRINGUP_ENGINE_OK) api->set_error(api->last_error());
  return second;
}
