// A C++ program that runs passes written in Python: what tests/host/ runs as a real process. The
// first argument names what it does; it prints what came of it, one fact a line.
#include "host.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>

using namespace host;

namespace {

long resident_kib() {
  std::ifstream file("/proc/self/statm");
  long size = 0, resident = 0;
  file >> size >> resident;
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

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

const Scenarios life_scenarios = {
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

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, void (*)()> all;
  for (const Scenarios& some : {life_scenarios, graph_scenarios(), trouble_scenarios()}) {
    all.insert(some.begin(), some.end());
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto found = argc == 2 ? all.find(argv[1]) : all.end();
  if (found == all.end() || engine == nullptr) return 2;
  found->second();
  std::printf("end\n");
  return 0;
}
