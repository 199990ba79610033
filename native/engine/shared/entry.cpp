// libbringup_engine.so: the engine for C and C++ programs, which call bringup_engine_get alone.
#include "engine/capi/api.h"
#include "engine/run/host_sessions.h"

extern "C" __attribute__((visibility("default"))) const bringup_engine_api* bringup_engine_get(
    uint32_t abi_version) {
  return abi_version == BRINGUP_ENGINE_ABI ? bringup::engine::engine_api() : nullptr;
}

// Asked by the Python package before it opens a module that needs this engine's symbols.
extern "C" __attribute__((visibility("default"))) const char* bringup_engine_build_key() {
  return bringup::engine::build_key();
}
