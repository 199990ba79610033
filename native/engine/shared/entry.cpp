// libbringup_engine.so: the engine for C and C++ programs, which call this function alone.
#include "engine/capi/api.h"

extern "C" __attribute__((visibility("default"))) const bringup_engine_api* bringup_engine_get(
    uint32_t abi_version) {
  return abi_version == BRINGUP_ENGINE_ABI ? bringup::engine::engine_api() : nullptr;
}
