// A C++ program that runs passes written in Python: what tests/host/ runs as a real process. The
// first argument names what it does; it prints what came of it, one fact a line.
#include <bringup/engine.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace {

const bringup_engine_api* engine = bringup_engine_get(BRINGUP_ENGINE_ABI);

[[noreturn]] void fail(const std::string& what) {
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

bringup_ir_value call(bringup_ir_graph graph, const char* type,
                      std::initializer_list<bringup_ir_value> reads) {
  std::vector<bringup_argument> arguments;
  for (const bringup_ir_value value : reads) {
    arguments.push_back({BRINGUP_ARGUMENT_VALUE, 0, {}});
    arguments.back().of.value = value;
  }
  bringup_ir_node node = BRINGUP_NO_NODE;
  check(engine->add_node(graph, type, arguments.data(), static_cast<uint32_t>(arguments.size()), 1,
                         BRINGUP_NO_NODE, &node));
  return {node, 0};
}

// `pairs` times relu(relu(...)), then abs.
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

// The first line of a text; all of it counts as one fact.
std::string line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', '|');
  return text;
}

bool run(bringup_ir_graph graph, bool says = true, const bringup_run_options* how = nullptr) {
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

long resident_kib() {
  std::ifstream file("/proc/self/statm");
  long size = 0, resident = 0;
  file >> size >> resident;
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

// The program's own use of Python, found in the process like any library's functions.
template <class Function>
Function python(const char* name) {
  void* found = dlsym(RTLD_DEFAULT, name);
  if (found == nullptr) fail(std::string("no ") + name);
  return reinterpret_cast<Function>(found);
}

void open_python() {
  if (dlopen(std::getenv("TEST_LIBPYTHON"), RTLD_NOW | RTLD_GLOBAL) == nullptr) fail(dlerror());
}

void start_python() {
  open_python();
  using Decode = wchar_t* (*)(const char*, size_t*);
  python<void (*)(const wchar_t*)>("Py_SetProgramName")(
      python<Decode>("Py_DecodeLocale")(std::getenv("TEST_PROGRAM"), nullptr));
  python<void (*)(int)>("Py_InitializeEx")(0);
}

void evaluate(const char* code) {
  if (python<int (*)(const char*, void*)>("PyRun_SimpleStringFlags")(code, nullptr) != 0) {
    fail(std::string("the program's own Python failed: ") + code);
  }
}

void print_state() { std::printf("state %d\n", engine->python_state()); }

// --- what the tests ask for

void once() {
  print_state();
  std::printf("loaded %u\n", load());
  print_state();
  run_and_list(3);
  check(engine->python_shutdown());
  print_state();
}

void borrowed() {
  start_python();
  evaluate("import sys; sys.mine = [1, 2]");
  std::printf("loaded %u\n", load());
  print_state();
  run_and_list(2);
  check(engine->python_unload());
  check(engine->python_shutdown());
  evaluate("assert sys.mine == [1, 2]; print('still mine', flush=True)");
  std::printf("finalized %d\n", python<int (*)()>("Py_FinalizeEx")());
}

// The program ends its interpreter, which it gave to passes, before it says so to the engine.
void ended_under_us() {
  start_python();
  std::printf("loaded %u\n", load());
  run_and_list(1);
  std::printf("finalized %d\n", python<int (*)()>("Py_FinalizeEx")());
  print_state();
  run_and_list(1);
  check(engine->python_unload());
  check(engine->python_shutdown());
  check(engine->python_shutdown());
  const bringup_python_options given = options();
  uint32_t count = 0;
  const int32_t status = engine->python_load(&given, &count);
  std::printf("load again %d: %s\n", status, engine->last_error());
}

// The program had an interpreter and ended it, before passes were asked for.
void ended_before() {
  start_python();
  evaluate("import json");
  std::printf("finalized %d\n", python<int (*)()>("Py_FinalizeEx")());
  once();
}

void never_started() {
  check(engine->python_unload());
  check(engine->python_shutdown());
  print_state();
  run_and_list(1);
}

void rounds() {
  long after_two = 0;
  for (int round = 0; round < 12; ++round) {
    load();
    const bringup_ir_graph graph = chain(20);
    if (!run(graph, false)) fail("the run failed");
    check(engine->graph_release(graph));
    check(engine->python_unload());
    using Ensure = int (*)();
    const int gil = python<Ensure>("PyGILState_Ensure")();
    evaluate("import gc, sys; gc.collect(); print('objects', len(gc.get_objects()), flush=True)");
    python<void (*)(int)>("PyGILState_Release")(gil);
    if (round == 1) after_two = resident_kib();
  }
  std::printf("growth %ld KiB\n", resident_kib() - after_two);
  check(engine->python_shutdown());
}

// Between the rounds the environment names other passes.
void environment() {
  for (const char* name : {"FIRST", "SECOND", "NOWHERE"}) {
    const char* place = std::getenv(name);
    place != nullptr ? setenv("BRINGUP_PASS_PATH", place, 1) : unsetenv("BRINGUP_PASS_PATH");
    std::printf("loaded %u\n", load());
    run_and_list(1);
    std::fflush(stdout);
  }
}

// A pass fails; others and later runs go on.
void failing() {
  load();
  run_and_list(1);
  run_and_list(1);
  std::printf("loaded again %u\n", load());
}

void threads() {
  load();
  std::vector<std::string> found(2);
  std::vector<std::thread> all;
  for (size_t number = 0; number < found.size(); ++number) {
    all.emplace_back([&, number] {
      for (int round = 0; round < 20; ++round) {
        const bringup_ir_graph graph = chain(static_cast<int>(10 + number));
        if (!run(graph, false)) fail("a run failed");
        found[number] = listed(graph);
        check(engine->graph_release(graph));
      }
    });
  }
  for (std::thread& thread : all) thread.join();
  for (const std::string& graph : found) std::printf("graph: %s\n", graph.c_str());
  std::vector<std::thread> closers;
  for (int number = 0; number < 4; ++number) {
    closers.emplace_back([] {
      if (engine->python_shutdown() != BRINGUP_ENGINE_OK &&
          std::strstr(engine->last_error(), "shutting Python down") == nullptr) {
        fail(engine->last_error());
      }
    });
  }
  for (std::thread& thread : closers) thread.join();
  print_state();
}

// Ends without telling anybody, graphs and passes still there.
void exits() {
  load();
  const bringup_ir_graph graph = chain(2);
  std::printf("run %d\n", run(graph));
}

// A run on another thread uses Python while this one shuts it down.
void shutdown_meanwhile() {
  load();
  std::thread runner([] { run_and_list(1); });
  const std::string mark = std::getenv("TEST_MARK");
  while (access((mark + ".began").c_str(), F_OK) != 0) std::this_thread::yield();
  const int32_t status = engine->python_shutdown();
  std::printf("shutdown %d: %s\n", status, engine->last_error());
  std::ofstream(mark + ".go").put('\n');
  runner.join();
  check(engine->python_shutdown());
}

void load_only() { std::printf("loaded %u\n", load()); }

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, void (*)()> all = {
      {"once", once},
      {"borrowed", borrowed},
      {"ended_under_us", ended_under_us},
      {"ended_before", ended_before},
      {"never_started", never_started},
      {"rounds", rounds},
      {"environment", environment},
      {"failing", failing},
      {"threads", threads},
      {"exits", exits},
      {"shutdown_meanwhile", shutdown_meanwhile},
      {"load_only", load_only},
  };
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto found = argc == 2 ? all.find(argv[1]) : all.end();
  if (found == all.end() || engine == nullptr) return 2;
  found->second();
  std::printf("end\n");
  return 0;
}
