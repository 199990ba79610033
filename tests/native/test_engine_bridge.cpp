// The engine's half of the bridge, and libbringup_bridge.so itself, over a Python that this program
// is (fake_python.h): who holds the interpreter's lock, who begins and ends it, what threads see.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine_api.h"
#include "fake_python.h"

using namespace engine_api;
using fake_python::state;

namespace {

namespace fs = std::filesystem;

// A folder that looks like an installed Python of this version.
std::string installed_python(const std::string& minor) {
  static int count = 0;
  const fs::path prefix = fs::temp_directory_path() / ("fake_python_" + std::to_string(getpid()) +
                                                       "_" + std::to_string(++count));
  fs::create_directories(prefix / "bin");
  fs::create_directories(prefix / "lib" / ("python" + minor));
  std::ofstream(prefix / "lib" / ("python" + minor) / "os.py").put('\n');
  std::ofstream(prefix / "bin" / "python").put('\n');
  return (prefix / "bin" / "python").string();
}

const std::string& program() {
  static const std::string path = installed_python("3.11");
  return path;
}

bringup_python_options options_for(const std::string& python) {
  bringup_python_options options{};
  options.struct_size = sizeof(options);
  options.bridge = TEST_BRIDGE;
  options.python_program = python.c_str();
  return options;
}

int32_t load() {
  const bringup_python_options options = options_for(program());
  return api().python_load(&options, nullptr);
}

std::string error_of_loading(const std::string& python) {
  const bringup_python_options options = options_for(python);
  CHECK_EQ(api().python_load(&options, nullptr), BRINGUP_ENGINE_FAILED);
  return api().last_error();
}

// What Python was asked so far, and forgets it.
std::string calls() {
  fake_python::take();
  std::string all;
  for (const std::string& call : std::exchange(state().calls, {})) {
    all += call.substr(0, call.find(' ')) + "\n";
  }
  fake_python::give();
  return all;
}

}  // namespace

TEST(a_python_without_its_standard_library_is_not_begun) {
  CHECK(contains(error_of_loading("/nowhere/bin/python"), "/nowhere has no lib/python3.11"));
  const std::string other = installed_python("3.99");
  CHECK(contains(error_of_loading(other), other + " is no python3.11"));
  setenv("PYTHONHOME", "/nowhere", 1);
  CHECK(
      contains(error_of_loading(program()), "PYTHONHOME is /nowhere, where no lib/python3.11 is"));
  unsetenv("PYTHONHOME");
  CHECK_EQ(state().begun, 0);
  CHECK_EQ(api().python_state(), BRINGUP_PYTHON_NONE);
}

TEST(a_virtual_environment_is_followed_to_the_python_that_made_it) {
  const fs::path base = fs::path(program()).parent_path();
  const fs::path place = base.parent_path() / "venv";
  fs::create_directories(place / "bin");
  std::ofstream(place / "bin" / "python").put('\n');
  std::ofstream(place / "pyvenv.cfg") << "version = 3.99\nhome = " << base.string() << "\n";
  const std::string python = (place / "bin" / "python").string();
  const bringup_python_options options = options_for(python);
  CHECK_EQ(api().python_load(&options, nullptr), BRINGUP_ENGINE_OK);
  CHECK_EQ(state().begun, 1);
  CHECK_EQ(api().python_state(), BRINGUP_PYTHON_OWNED);
  CHECK_EQ(calls(), "bringup.passes.host.begin_round\n");
}

TEST(an_exception_is_a_status_with_its_words_and_leaves_no_objects) {
  fake_python::take();
  state().raises = "the pass is broken";
  fake_python::give();
  CHECK_EQ(load(), BRINGUP_ENGINE_FAILED);
  CHECK(contains(api().last_error(), "number"));  // what describe_error of the package returns
  CHECK_EQ(calls(), "bringup.passes.host.begin_round\nbringup.passes.host.describe_error\n");
  CHECK_EQ(state().alive, 0);
}

TEST(a_package_that_is_not_there_is_looked_for_beside_the_bridge) {
  fake_python::take();
  state().missing = {"bringup.passes.host"};
  fake_python::give();
  CHECK_EQ(load(), BRINGUP_ENGINE_FAILED);
  CHECK(contains(api().last_error(),
                 "the Python package bringup cannot be imported by Python 3.11.99: no module"));
  fake_python::take();
  state().missing.clear();
  fake_python::give();
  CHECK_EQ(calls(), "sys.path.append\n");
  CHECK_EQ(state().alive, 0);
}

TEST(threads_load_unload_and_ask_at_once) {
  std::vector<std::thread> all;
  std::atomic<int> failed{0};
  for (int number = 0; number < 4; ++number) {
    all.emplace_back([&, number] {
      for (int round = 0; round < 200; ++round) {
        const int32_t status = number % 2 == 0 ? load() : api().python_unload();
        if (status != BRINGUP_ENGINE_OK) ++failed;
        if (api().python_state() != BRINGUP_PYTHON_OWNED) ++failed;
      }
    });
  }
  for (std::thread& thread : all) thread.join();
  CHECK_EQ(failed, 0);
  CHECK_EQ(state().begun, 1);
  CHECK_EQ(state().alive, 0);
}

// A thread with the interpreter's lock asks while another waits for that lock to end it.
TEST(a_thread_with_the_lock_is_answered_while_others_shut_down) {
  calls();
  fake_python::take();
  std::vector<std::thread> all;
  std::atomic<int> ended{0}, refused{0};
  for (int number = 0; number < 4; ++number) {
    all.emplace_back([&] {
      if (api().python_shutdown() == BRINGUP_ENGINE_OK) {
        ++ended;
      } else if (contains(api().last_error(), "another thread is shutting Python down")) {
        ++refused;
      }
    });
  }
  while (state().waiting == 0) std::this_thread::yield();
  CHECK_EQ(api().python_state(), BRINGUP_PYTHON_OWNED);
  CHECK_EQ(load(), BRINGUP_ENGINE_FAILED);
  CHECK(contains(api().last_error(), "another thread is shutting Python down"));
  CHECK_EQ(api().python_unload(), BRINGUP_ENGINE_FAILED);
  CHECK_EQ(calls(), "");
  fake_python::give();
  for (std::thread& thread : all) thread.join();
  CHECK(ended >= 1);
  CHECK_EQ(ended + refused, 4);
  CHECK_EQ(state().finalized, 1);
  CHECK_EQ(calls(), "bringup.passes.host.end_round\nbringup.passes.host.name_threads\n");
}

TEST(after_the_end_nothing_begins_again) {
  CHECK_EQ(api().python_state(), BRINGUP_PYTHON_ENDED);
  CHECK_EQ(api().python_shutdown(), BRINGUP_ENGINE_OK);
  CHECK_EQ(api().python_unload(), BRINGUP_ENGINE_OK);
  CHECK_EQ(load(), BRINGUP_ENGINE_FAILED);
  CHECK(contains(api().last_error(), "Python was shut down in this process"));
  CHECK_EQ(state().begun, 1);
  CHECK_EQ(state().alive, 0);
}
