// Loads another library, named by the environment, and itself, while it is being loaded.
#include <cstdlib>

#include "bringup/engine.h"

extern "C" __attribute__((visibility("default"))) int32_t
bringup_register_passes(const bringup_engine_api* api) {
  const char* self = std::getenv("BRINGUP_TEST_NESTED_SELF");
  const char* other = std::getenv("BRINGUP_TEST_NESTED_OTHER");
  if (self != nullptr && api->load_library(self, nullptr) != BRINGUP_ENGINE_OK) return 1;
  if (other != nullptr && api->load_library(other, nullptr) != BRINGUP_ENGINE_OK) return 2;
  bringup_pass_definition definition{};
  definition.struct_size = sizeof(definition);
  definition.name = "Nested";
  definition.run = [](void*, bringup_ir_graph, bringup_pass_context) { return 0; };
  return api->register_pass(&definition);
}
