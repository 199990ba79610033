#include "engine/capi/bridge.h"

#include <dlfcn.h>

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include "bridge/bridge.h"
#include "bringup_build_key.h"
#include "engine/run/host_sessions.h"
#include "engine/util/error.h"
#include "runtime/loader.h"

namespace bringup::engine {

const char* build_key() { return BRINGUP_BUILD_KEY; }

namespace {

struct OpenBridge {
  std::shared_ptr<runtime::Library> library;
  const bringup_bridge_table* table = nullptr;
};

struct BridgeState {
  std::mutex mutex;
  std::shared_ptr<const OpenBridge> bridge;
  bool has_ended = false;  // the interpreter: CPython's extension modules do not start twice
};

BridgeState& bridge_state() {
  static auto* const state = new BridgeState;
  return *state;
}

// The bridge of the same build lies beside the engine.
std::string default_path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&build_key), &info) == 0 || info.dli_fname == nullptr) {
    throw EngineError(ErrorCode::kMissing,
                      "cannot tell where libbringup_engine.so lies: name the "
                      "bridge (bringup_python_options.bridge)");
  }
  return std::filesystem::absolute(info.dli_fname).replace_filename("libbringup_bridge.so");
}

// RTLD_LOCAL: nothing links the bridge or uses its names. What must be global is
// libpython, whose symbols extension modules do not link; the bridge sees to that.
std::shared_ptr<const OpenBridge> open_bridge(const char* given) {
  const std::string path = given != nullptr ? given : default_path();
  auto made = std::make_shared<OpenBridge>();
  bringup_bridge_get_fn get = nullptr;
  try {
    made->library = runtime::Library::open(path);
    get = reinterpret_cast<bringup_bridge_get_fn>(made->library->symbol("bringup_bridge_get"));
  } catch (const std::runtime_error& error) {
    throw EngineError(ErrorCode::kMissing,
                      "the bridge to Python cannot be loaded: " + std::string(error.what()) +
                          "; name it in bringup_python_options.bridge: it is "
                          "bringup/_native/libbringup_bridge.so of the Python package");
  }
  made->table = get(path.c_str());
  const std::string key = made->table->build_key;
  if (key != build_key()) {
    throw EngineError(ErrorCode::kFailed, "the bridge " + engine::in_quotes(path) +
                                              " was built with the key " + key +
                                              ", this libbringup_engine.so with " + build_key() +
                                              ": take both from one package");
  }
  return made;
}

std::shared_ptr<const OpenBridge> bridge_for(const bringup_python_options& options) {
  BridgeState& state = bridge_state();
  const std::lock_guard lock(state.mutex);
  if (state.has_ended) {
    throw EngineError(ErrorCode::kFailed,
                      "Python was shut down in this process, and its extension modules do not "
                      "start twice: load passes before python_shutdown, in a new process");
  }
  if (state.bridge == nullptr) state.bridge = open_bridge(options.bridge);
  return state.bridge;
}

std::shared_ptr<const OpenBridge> bridge_if_open() {
  BridgeState& state = bridge_state();
  const std::lock_guard lock(state.mutex);
  return state.bridge;
}

void check(const OpenBridge& bridge, int32_t status) {
  if (status != 0) throw EngineError(ErrorCode::kFailed, bridge.table->last_error());
}

}  // namespace

void python_load(const bringup_python_options& options, uint32_t* count) {
  const HostUse use;
  const auto bridge = bridge_for(options);
  check(*bridge, bridge->table->load(&options, count));
}

void python_unload() {
  const HostUse use;
  const auto bridge = bridge_if_open();
  if (bridge != nullptr) check(*bridge, bridge->table->unload());
}

// In this order: registrations and Python's objects, the interpreter, the bridge.
void python_shutdown() {
  auto bridge = bridge_if_open();
  if (bridge == nullptr) return;
  const HostPause pause;
  BridgeState& state = bridge_state();
  {
    const std::lock_guard lock(state.mutex);
    if (state.bridge == nullptr) return;  // another thread was first
  }
  const bool was_used = bridge->table->state() != BRINGUP_PYTHON_NONE;
  check(*bridge, bridge->table->shutdown());
  const std::lock_guard lock(state.mutex);
  state.has_ended |= was_used;
  state.bridge.reset();
}

bringup_python_state python_state() {
  const auto bridge = bridge_if_open();
  if (bridge != nullptr) return static_cast<bringup_python_state>(bridge->table->state());
  BridgeState& state = bridge_state();
  const std::lock_guard lock(state.mutex);
  return state.has_ended ? BRINGUP_PYTHON_ENDED : BRINGUP_PYTHON_NONE;
}

int32_t python_command(const bringup_python_options& options, const char* const* arguments,
                       uint32_t count) {
  const HostUse use;
  const auto bridge = bridge_for(options);
  int32_t exit_code = 0;
  check(*bridge, bridge->table->command(&options, arguments, count, &exit_code));
  return exit_code;
}

}  // namespace bringup::engine
