// bringupc: `bringup compile` as a program of its own, which reaches the package by the bridge.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "bringup/engine.h"

namespace {

constexpr int kFailed = 1;  // as in bringup.cli.ExitCode

constexpr const char* kPlaces =
    "  --bridge FILE           libbringup_bridge.so; by default the one beside "
    "libbringup_engine.so\n"
    "  --python FILE           an interpreter whose environment is used, a venv's bin/python\n"
    "  --python-library FILE   its libpython3.X.so\n";

// What follows `--name` or `--name=`, else null.
const char* value_of(const char* name, const std::vector<std::string>& given, size_t& index) {
  const std::string& argument = given[index];
  const size_t size = std::strlen(name);
  if (argument.compare(0, size, name) != 0) return nullptr;
  if (argument.size() > size) return argument[size] == '=' ? argument.c_str() + size + 1 : nullptr;
  return index + 1 < given.size() ? given[++index].c_str() : nullptr;
}

}  // namespace

int main(int count, char** texts) {
  const std::vector<std::string> given(texts + 1, texts + count);
  const bringup_engine_api* engine = bringup_engine_get(BRINGUP_ENGINE_ABI);
  bringup_python_options options{};
  options.struct_size = sizeof(options);
  std::vector<const char*> arguments = {"compile"};
  bool wants_help = given.empty();
  for (size_t index = 0; index < given.size(); ++index) {
    if (const char* bridge = value_of("--bridge", given, index)) {
      options.bridge = bridge;
    } else if (const char* library = value_of("--python-library", given, index)) {
      options.python_library = library;
    } else if (const char* program = value_of("--python", given, index)) {
      options.python_program = program;
    } else if (const char* report = value_of("--report", given, index)) {
      arguments.insert(arguments.end(), {"--json", report});
    } else {
      wants_help |= given[index] == "--help";
      arguments.push_back(given[index].c_str());
    }
  }
  if (given.empty()) arguments.push_back("--help");
  if (wants_help) {
    std::printf("bringupc FILE.onnx -o OUT.onnx [--report FILE.json] ...: as `bringup compile`;\n");
    std::printf("--report is its --json. Where Python is:\n%s\n", kPlaces);
    std::fflush(stdout);
  }
  int32_t exit_code = kFailed;
  const int32_t status = engine->python_command(
      &options, arguments.data(), static_cast<uint32_t>(arguments.size()), &exit_code);
  if (status != BRINGUP_ENGINE_OK) {
    std::fprintf(stderr, "bringupc: %s\n", engine->last_error());
    exit_code = kFailed;
  }
  if (engine->python_shutdown() != BRINGUP_ENGINE_OK) {
    std::fprintf(stderr, "bringupc: %s\n", engine->last_error());
    if (exit_code == 0) exit_code = kFailed;
  }
  return exit_code;
}
