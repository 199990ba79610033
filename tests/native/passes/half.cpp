// Registers one pass, then throws: nothing of it may stay.
#include <stdexcept>

#include "bringup/engine.h"

extern "C" __attribute__((visibility("default"))) int32_t
bringup_register_passes(const bringup_engine_api* api) {
  bringup_pass_definition definition{};
  definition.struct_size = sizeof(definition);
  definition.name = "Half";
  definition.run = [](void*, bringup_ir_graph, bringup_pass_context) { return 0; };
  api->register_pass(&definition);
  throw std::runtime_error("no luck");
}
