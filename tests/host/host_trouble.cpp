// What may go wrong around passes: calls from inside of one, forks, signals, threads.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "host.h"

// For passes, which find these in the process (ctypes.CDLL(None)).
extern "C" int32_t host_shutdown() { return host::engine->python_shutdown(); }
extern "C" int32_t host_unload() { return host::engine->python_unload(); }
extern "C" int32_t host_load() {
  const bringup_python_options given = host::options();
  return host::engine->python_load(&given, nullptr);
}
extern "C" int32_t host_state() { return host::engine->python_state(); }
extern "C" int32_t host_run() {
  const bringup_ir_graph graph = host::chain(1);
  const bool succeeded = host::run(graph, false);
  host::check(host::engine->graph_release(graph));
  return succeeded ? 0 : 1;
}
extern "C" const char* host_error() { return host::engine->last_error(); }

namespace host {
namespace {

const char* mark() { return std::getenv("TEST_MARK"); }

void wait_for(const char* end) {
  const std::string file = std::string(mark()) + end;
  while (access(file.c_str(), F_OK) != 0) std::this_thread::yield();
}

void go() { std::ofstream(std::string(mark()) + ".go").put('\n'); }

// A pass runs while its round ends; the next run has no passes.
void unload_meanwhile() {
  load();
  std::thread runner([] { run_and_list(1); });
  wait_for(".began");
  check(engine->python_unload());
  std::printf("unloaded\n");
  go();
  runner.join();
  run_and_list(1);
  std::printf("loaded %u\n", load());
  check(engine->python_shutdown());
}

void run_after_shutdown() {
  load();
  check(engine->python_shutdown());
  run_and_list(1);
  const bringup_python_options given = options();
  int32_t exit_code = 0;
  const char* const arguments[] = {"--version"};
  int32_t status = engine->python_load(&given, nullptr);
  std::printf("load %d: %s\n", status, engine->last_error());
  status = engine->python_command(&given, arguments, 1, &exit_code);
  std::printf("command %d: %s\n", status, engine->last_error());
  check(engine->python_unload());
  check(engine->python_shutdown());
}

// The program has a handler of its own for Ctrl-C, and keeps it.
void handles_signals() {
  struct sigaction action = {};
  action.sa_handler = [](int) {
    char path[4096];
    std::strncpy(path, mark(), sizeof(path) - 4);
    std::strcat(path, ".go");
    close(open(path, O_CREAT | O_WRONLY, 0600));
  };
  sigaction(SIGINT, &action, nullptr);
  load();
  run_and_list(1);
  check(engine->python_shutdown());
}

void in_child(void (*work)()) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    work();
    std::fflush(stdout);
    std::_Exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::printf("child %d\n", status);
}

// A child that is made while nobody uses Python has all that its parent has.
void forks() {
  load();
  run_and_list(1);
  in_child([] {
    run_and_list(2);
    std::printf("child loaded %u\n", load());
    run_and_list(2);
    check(engine->python_shutdown());
    print_state();
  });
  run_and_list(1);
  check(engine->python_shutdown());
}

// A child that is made while another thread runs a pass has the locks which that thread took.
void forks_during_a_run() {
  load();
  std::thread runner([] { run_and_list(1); });
  wait_for(".began");
  in_child([] {
    int32_t status = host_load();
    std::printf("child load %d: %s\n", status, host_error());
    const bringup_ir_graph graph = chain(1);
    bringup_run_report report = 0;
    status = engine->run_passes(graph, nullptr, &report);
    std::printf("child run %d: %s\n", status, engine->last_error());
    status = host_shutdown();
    std::printf("child shutdown %d: %s\n", status, host_error());
  });
  go();
  runner.join();
  check(engine->python_shutdown());
}

// Many threads load, run, unload and ask at once; whatever they find, nothing is half done.
void everything_at_once() {
  load();
  std::vector<std::thread> all;
  for (int number = 0; number < 4; ++number) {
    all.emplace_back([number] {
      for (int round = 0; round < 10; ++round) {
        if (number == 0) host_load();
        if (number == 1) host_unload();
        if (number >= 2) host_run();
        if (host_state() != BRINGUP_PYTHON_OWNED) fail("the state changed");
      }
    });
  }
  for (std::thread& thread : all) thread.join();
  check(engine->python_unload());
  std::printf("loaded %u\n", load());
  run_and_list(1);
  check(engine->python_shutdown());
}

// Two faults on purpose: what watches the program must say so.
void loses() {
  for (int number = 0; number < 100; ++number) std::printf("lost %d\n", *new int(number));
}

void reads_freed() {
  int* const volatile gone = new int[100];
  delete[] gone;
  std::printf("read %d\n", gone[7]);
}

// Runs on one thread while another ends Python: each has its passes or says why not.
void runs_until_shutdown() {
  load();
  std::thread runner([] {
    for (int round = 0; round < 200; ++round) {
      const bringup_ir_graph graph = chain(1);
      bringup_run_report report = 0;
      const int32_t status = engine->run_passes(graph, nullptr, &report);
      const std::string why = status == 0 ? "" : engine->last_error();
      const bool known = why.empty() || why.find("shutting Python down") != std::string::npos ||
                         why.find("has been unloaded") != std::string::npos;
      if (!known) fail(why);
      if (report != 0) check(engine->report_release(report));
      check(engine->graph_release(graph));
    }
  });
  while (engine->python_shutdown() != BRINGUP_ENGINE_OK) std::this_thread::yield();
  runner.join();
  print_state();
}

}  // namespace

Scenarios trouble_scenarios() {
  return {{"unload_meanwhile", unload_meanwhile},
          {"run_after_shutdown", run_after_shutdown},
          {"handles_signals", handles_signals},
          {"forks", forks},
          {"forks_during_a_run", forks_during_a_run},
          {"everything_at_once", everything_at_once},
          {"runs_until_shutdown", runs_until_shutdown},
          {"loses", loses},
          {"reads_freed", reads_freed}};
}

}  // namespace host
