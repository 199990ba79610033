#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "host.h"

namespace host {

const bringup_engine_api* const engine = bringup_engine_get(BRINGUP_ENGINE_ABI);

void fail(const std::string& what) {
  std::printf("error: %s\n", what.c_str());
  std::fflush(stdout);
  std::_Exit(3);
}

void check(int32_t status) {
  if (status != BRINGUP_ENGINE_OK) fail(engine->last_error());
}

bringup_python_options options() {
  bringup_python_options given{};
  given.struct_size = sizeof(given);
  given.bridge = std::getenv("TEST_BRIDGE");
  given.python_library = std::getenv("TEST_PYTHON_LIBRARY");
  given.python_program = std::getenv("TEST_PYTHON_PROGRAM");
  given.sys_path = std::getenv("TEST_SYS_PATH");
  given.pass_path = std::getenv("TEST_PASS_PATH");
  given.modules = std::getenv("TEST_MODULES");
  if (const char* limit = std::getenv("TEST_TIME_LIMIT")) given.time_limit = std::atof(limit);
  return given;
}

bringup_argument argument(bringup_ir_value value) {
  bringup_argument made{BRINGUP_ARGUMENT_VALUE, 0, {}};
  made.of.value = value;
  return made;
}

bringup_ir_value call(bringup_ir_graph graph, const char* type,
                      const std::vector<bringup_argument>& arguments) {
  bringup_ir_node node = BRINGUP_NO_NODE;
  check(engine->add_node(graph, type, arguments.data(), static_cast<uint32_t>(arguments.size()), 1,
                         BRINGUP_NO_NODE, &node));
  return {node, 0};
}

bringup_ir_value call(bringup_ir_graph graph, const char* type,
                      std::initializer_list<bringup_ir_value> reads) {
  std::vector<bringup_argument> arguments;
  for (const bringup_ir_value value : reads) arguments.push_back(argument(value));
  return call(graph, type, arguments);
}

bringup_ir_graph chain(int pairs) {
  bringup_ir_graph graph = 0;
  check(engine->graph_create("chain", &graph));
  const int64_t shape[] = {2, 4};
  bringup_tensor_desc desc{};
  desc.struct_size = sizeof(desc);
  desc.rank = 2;
  desc.shape = shape;
  desc.dtype = "float32";
  desc.device = "cpu";
  bringup_ir_value value{};
  check(engine->add_input(graph, "x", &desc, &value));
  const float data[] = {1.0f, 2.0f};
  const int64_t sizes[] = {2};
  bringup_constant constant{};
  constant.struct_size = sizeof(constant);
  constant.rank = 1;
  constant.shape = sizes;
  constant.dtype = "float32";
  constant.data = data;
  constant.bytes = sizeof(data);
  bringup_ir_value weight{};
  check(engine->add_constant(graph, "weight", &constant, &weight));
  for (int pair = 0; pair < pairs; ++pair) {
    value = call(graph, "demo::relu", {call(graph, "demo::relu", {value})});
  }
  value = call(graph, "demo::scale", {value, weight});
  check(engine->set_outputs(graph, &value, 1));
  return graph;
}

std::string listed(bringup_ir_graph graph) {
  std::string all;
  bringup_ir_node node = BRINGUP_NO_NODE;
  for (check(engine->first_node(graph, &node)); node != BRINGUP_NO_NODE;
       check(engine->next_node(graph, node, &node))) {
    const char* type = nullptr;
    check(engine->node_type(graph, node, &type));
    if (!all.empty()) all.push_back(' ');
    all.append(type);
  }
  return all;
}

std::string line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', '|');
  return text;
}

bool run(bringup_ir_graph graph, bool says, const bringup_run_options* how) {
  bringup_run_report report = 0;
  const int32_t status = engine->run_passes(graph, how, &report);
  if (report == 0) fail(engine->last_error());
  uint32_t count = 0;
  check(engine->report_count(report, &count));
  for (uint32_t index = 0; says && index < count; ++index) {
    bringup_pass_result result{};
    result.struct_size = sizeof(result);
    check(engine->report_result(report, index, &result));
    std::printf("pass %s outcome=%d matches=%d status=%d\n", result.name, result.outcome,
                static_cast<int>(result.matches), result.status);
    if (*result.message != '\0') std::printf("message: %s\n", line(result.message).c_str());
    if (*result.near_miss != '\0') std::printf("near miss: %s\n", line(result.near_miss).c_str());
    if (*result.traceback != '\0') {
      std::printf("traceback: %s\n", line(result.traceback).c_str());
    }
  }
  check(engine->report_release(report));
  return status == BRINGUP_ENGINE_OK;
}

void run_and_list(int pairs) {
  const bringup_ir_graph graph = chain(pairs);
  const bool succeeded = run(graph);
  std::printf("run %s\n", succeeded ? "succeeded" : "failed");
  std::printf("graph: %s\n", listed(graph).c_str());
  check(engine->graph_release(graph));
}

uint32_t load() {
  uint32_t count = 0;
  const bringup_python_options given = options();
  check(engine->python_load(&given, &count));
  return count;
}

void start_python() {
  if (dlopen(std::getenv("TEST_LIBPYTHON"), RTLD_NOW | RTLD_GLOBAL) == nullptr) fail(dlerror());
  using Decode = wchar_t* (*)(const char*, size_t*);
  static const wchar_t* const name =
      python<Decode>("Py_DecodeLocale")(std::getenv("TEST_PROGRAM"), nullptr);
  python<void (*)(const wchar_t*)>("Py_SetProgramName")(name);
  python<void (*)(int)>("Py_InitializeEx")(0);
}

void evaluate(const char* code) {
  if (python<int (*)(const char*, void*)>("PyRun_SimpleStringFlags")(code, nullptr) != 0) {
    fail(std::string("the program's own Python failed: ") + code);
  }
}

void print_state() { std::printf("state %d\n", engine->python_state()); }

}  // namespace host
