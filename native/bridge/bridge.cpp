// libbringup_bridge.so: passes in Python for programs that are not. bridge.h is what it gives.
#include "bridge/bridge.h"

#include <exception>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "bridge/interpreter.h"
#include "bringup_build_key.h"

extern char** environ;

namespace bringup::bridge {
namespace {

constexpr const char* kModule = "bringup.passes.host";

thread_local std::string error_text;

// Where `bringup` lies, if nothing else says so. Never destroyed: exiting threads may still use it.
std::filesystem::path* package_folder = nullptr;

// No exception leaves the bridge.
template <class Work>
int32_t guarded(Work&& work) noexcept {
  try {
    work();
    return 0;
  } catch (const BridgeError& error) {
    error_text = error.text;
  } catch (const std::exception& error) {
    error_text = error.what();
  }
  return -1;
}

std::string text_of(const char* text) { return text != nullptr ? text : ""; }

// The process's environment as it is now: os.environ is as it was when Python began.
std::string environment() {
  std::string all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (entry != environ) all.push_back('\0');
    all += *entry;
  }
  return all;
}

const PythonApi& prepare(const bringup_python_options& options) {
  return Interpreter::instance().start(options.python_library, options.python_program,
                                       *package_folder);
}

int32_t load(const bringup_python_options* options, uint32_t* count) {
  return guarded([&] {
    const PythonApi& api = prepare(*options);
    const Gil gil(api);
    find_module(api, kModule, *package_folder);
    const std::vector<std::string> texts = {environment(), text_of(options->sys_path),
                                            text_of(options->pass_path), text_of(options->modules),
                                            BRINGUP_BUILD_KEY};
    *count = static_cast<uint32_t>(call(api, kModule, "begin_round", texts, &options->time_limit));
  });
}

int32_t unload() {
  return guarded([] {
    const PythonApi* api = Interpreter::instance().running();
    if (api == nullptr) return;
    const Gil gil(*api);
    call(*api, kModule, "end_round", {});
  });
}

int32_t shut_down() {
  return guarded([] {
    Interpreter::instance().end([](const PythonApi& api) {
      call(api, kModule, "end_round", {});
      if (Interpreter::instance().state() == BRINGUP_PYTHON_OWNED) {
        call(api, kModule, "name_threads", {});
      }
    });
    delete std::exchange(package_folder, nullptr);
  });
}

int32_t command(const bringup_python_options* options, const char* const* arguments, uint32_t count,
                int32_t* exit_code) {
  return guarded([&] {
    const PythonApi& api = prepare(*options);
    const Gil gil(api);
    find_module(api, kModule, *package_folder);
    std::vector<std::string> texts = {environment(), text_of(options->sys_path)};
    texts.insert(texts.end(), arguments, arguments + count);
    *exit_code =
        static_cast<int32_t>(call(api, "bringup.cli._bridge_commands", "run_command", texts));
  });
}

int32_t state() { return Interpreter::instance().state(); }

}  // namespace
}  // namespace bringup::bridge

extern "C" __attribute__((visibility("default"))) const bringup_bridge_table* bringup_bridge_get(
    const char* path) {
  namespace bridge = bringup::bridge;
  delete bridge::package_folder;
  bridge::package_folder = new std::filesystem::path(bridge::folder_of_package(path));
  static const bringup_bridge_table table = {
      sizeof(bringup_bridge_table),
      BRINGUP_BUILD_KEY,
      [] { return bridge::error_text.c_str(); },
      bridge::load,
      bridge::unload,
      bridge::shut_down,
      bridge::command,
      bridge::state,
  };
  return &table;
}
