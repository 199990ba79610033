// The C API: passes in Python for programs that are not, reached through libbringup_bridge.so.
#include "bridge/bridge.h"

#include <dlfcn.h>

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include "bringup_build_key.h"
#include "engine/capi/api.h"
#include "engine/capi/handles.h"
#include "engine/capi/marshal.h"
#include "engine/run/host_sessions.h"
#include "engine/util/error.h"
#include "engine/util/forever.h"
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

BridgeState& bridge_state() { return forever<BridgeState>(); }

// The bridge of the same build lies beside the engine.
std::string default_path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&build_key), &info) == 0 || info.dli_fname == nullptr) {
    throw_error(ErrorCode::kMissing,
                "cannot tell where libbringup_engine.so lies: name the "
                "bridge (bringup_python_options.bridge)");
  }
  return std::filesystem::absolute(info.dli_fname).replace_filename("libbringup_bridge.so");
}

// RTLD_LOCAL: only libpython must be global, for extension modules, and the bridge sees to that.
std::shared_ptr<const OpenBridge> open_bridge(const char* given) {
  const std::string path = given != nullptr ? given : default_path();
  auto made = std::make_shared<OpenBridge>();
  bringup_bridge_get_fn get = nullptr;
  try {
    made->library = runtime::Library::open(path);
    get = reinterpret_cast<bringup_bridge_get_fn>(made->library->symbol("bringup_bridge_get"));
  } catch (const std::runtime_error& error) {
    throw_error(ErrorCode::kMissing, "the bridge to Python cannot be loaded: ", error.what(),
                "; name it in bringup_python_options.bridge: it is "
                "bringup/_native/libbringup_bridge.so of the Python package");
  }
  made->table = get(path.c_str());
  const std::string key = made->table->build_key;
  if (key != build_key()) {
    throw_error(ErrorCode::kFailed, "the bridge ", engine::in_quotes(path),
                " was built with the key ", key, ", this libbringup_engine.so with ", build_key(),
                ": take both from one package");
  }
  return made;
}

std::shared_ptr<const OpenBridge> bridge_for(const bringup_python_options& options) {
  BridgeState& state = bridge_state();
  const std::lock_guard lock(state.mutex);
  if (state.has_ended) {
    throw_error(ErrorCode::kFailed,
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
  if (status != 0) throw_error(ErrorCode::kFailed, bridge.table->last_error());
}

bringup_python_options whole_options(const bringup_python_options* given_options) {
  if (given_options == nullptr) return {sizeof(bringup_python_options)};
  bringup_python_options options = whole(given_options, "options");
  options.struct_size = sizeof(options);
  return options;
}

void load(const bringup_python_options* given_options, uint32_t* count) {
  const bringup_python_options options = whole_options(given_options);
  const HostUse use;
  const auto bridge = bridge_for(options);
  uint32_t found = 0;
  check(*bridge, bridge->table->load(&options, &found));
  if (count != nullptr) *count = found;
}

void unload() {
  const HostUse use;
  const auto bridge = bridge_if_open();
  if (bridge != nullptr) check(*bridge, bridge->table->unload());
}

// In this order: registrations and Python's objects, the interpreter, the bridge.
void shut_down() {
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

int32_t state() {
  const auto bridge = bridge_if_open();
  if (bridge != nullptr) return bridge->table->state();
  BridgeState& kept = bridge_state();
  const std::lock_guard lock(kept.mutex);
  return kept.has_ended ? BRINGUP_PYTHON_ENDED : BRINGUP_PYTHON_NONE;
}

void command(const bringup_python_options* given_options, const char* const* arguments,
             uint32_t count, int32_t* exit_code) {
  if (count > 0) given(arguments, "arguments");
  for (uint32_t index = 0; index < count; ++index) text_given(arguments[index], "an argument");
  given(exit_code, "exit_code");
  const bringup_python_options options = whole_options(given_options);
  const HostUse use;
  const auto bridge = bridge_for(options);
  int32_t code = 0;
  check(*bridge, bridge->table->command(&options, arguments, count, &code));
  *exit_code = code;
}

}  // namespace

void fill_python_functions(bringup_engine_api& table) {
  table.python_load = api<load>;
  table.python_unload = api<unload>;
  table.python_shutdown = api<shut_down>;
  table.python_state = state;
  table.python_command = api<command>;
}

}  // namespace bringup::engine
