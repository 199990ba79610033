// What the scenarios of the host program share: options from the environment, small graphs, a run.
#pragma once

#include <bringup/engine.h>
#include <dlfcn.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace host {

extern const bringup_engine_api* const engine;

// A scenario prints what came of it, one fact a line.
using Scenarios = std::vector<std::pair<const char*, void (*)()>>;
Scenarios graph_scenarios();
Scenarios trouble_scenarios();

[[noreturn]] void fail(const std::string& what);
void check(int32_t status);
bringup_python_options options();  // as the variables TEST_... say
uint32_t load();
void print_state();

bringup_argument argument(bringup_ir_value value);
// A call at the end of the graph; its first output.
bringup_ir_value call(bringup_ir_graph graph, const char* type,
                      const std::vector<bringup_argument>& arguments);
bringup_ir_value call(bringup_ir_graph graph, const char* type,
                      std::initializer_list<bringup_ir_value> reads);
// `pairs` times relu(relu(...)), then scale.
bringup_ir_graph chain(int pairs);
// The types of all nodes.
std::string listed(bringup_ir_graph graph);
// A text as one line.
std::string line(std::string text);
// Whether all passes succeeded; prints their results if it `says`.
bool run(bringup_ir_graph graph, bool says = true, const bringup_run_options* how = nullptr);
void run_and_list(int pairs);

// The program's own use of Python, found in the process like any library's functions.
template <class Function>
Function python(const char* name) {
  void* found = dlsym(RTLD_DEFAULT, name);
  if (found == nullptr) fail(std::string("no ") + name);
  return reinterpret_cast<Function>(found);
}
void start_python();
void evaluate(const char* code);

}  // namespace host
