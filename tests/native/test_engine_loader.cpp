// Libraries with passes: whole or not at all, once, and closed when nothing refers to them.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "engine/capi/plugin_loader.h"
#include "engine_api.h"

using namespace engine_api;

namespace {

std::string library(const char* name) { return std::string(TEST_PASSES "/") + name + ".so"; }

std::string registered_names() {
  std::string all;
  for (const auto& pass : bringup::engine::Registry::instance().all()) {
    all += pass->descriptor.pass_name + " ";
  }
  return all;
}

bool is_mapped(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return false;
  dlclose(handle);
  return true;
}

}  // namespace

TEST(library_registers_its_passes_and_they_run) {
  uint32_t count = 0;
  REQUIRE(api().load_library(library("good").c_str(), &count) == BRINGUP_ENGINE_OK);
  CHECK_EQ(count, 2u);
  CHECK_EQ(registered_names(), "CountInC TanhInC ");
  bringup_pass_info info{};
  info.struct_size = sizeof(info);
  api().pass_info(0, &info);
  CHECK_EQ(std::string(info.module_name), std::filesystem::canonical(library("good")).string());
  Chain chain;
  CHECK_EQ(Ran(chain.graph).status, BRINGUP_ENGINE_OK);
  CHECK_EQ(types(chain.graph), "t::tanh t::exp ");
  CHECK_EQ(api().load_library(library("good").c_str(), &count), BRINGUP_ENGINE_OK);
  CHECK_EQ(registered_names(), "CountInC TanhInC ");
  CHECK_EQ(api().unload_library(library("good").c_str()), BRINGUP_ENGINE_OK);
  CHECK_EQ(registered_names(), "");
  CHECK(!is_mapped(library("good")));
  CHECK_EQ(api().unload_library(library("good").c_str()), BRINGUP_ENGINE_NOT_FOUND);
}

// What fails half way registers nothing.
TEST(library_that_fails_registers_nothing) {
  CHECK_EQ(api().load_library(library("half").c_str(), nullptr), BRINGUP_ENGINE_FAILED);
  CHECK(contains(api().last_error(), "returned status 7: it threw: no luck"));
  CHECK_EQ(registered_names(), "");
  CHECK_EQ(api().load_library(library("empty").c_str(), nullptr), BRINGUP_ENGINE_FAILED);
  CHECK(contains(api().last_error(), "exports no symbol 'bringup_register_passes'"));
  CHECK_EQ(api().load_library("/nowhere/x.so", nullptr), BRINGUP_ENGINE_NOT_FOUND);
  CHECK(contains(api().last_error(), "library '/nowhere/x.so': No such file"));
  std::ofstream(library("text")) << "no library";
  CHECK_EQ(api().load_library(library("text").c_str(), nullptr), BRINGUP_ENGINE_FAILED);
}

// A duplicate name rolls back all registrations of its library, and leaves the first.
TEST(library_that_wants_a_taken_name_registers_nothing) {
  REQUIRE(api().load_library(library("good").c_str(), nullptr) == BRINGUP_ENGINE_OK);
  CHECK_EQ(api().load_library(library("taken").c_str(), nullptr), BRINGUP_ENGINE_FAILED);
  CHECK(contains(api().last_error(), "a pass named 'CountInC' is registered already"));
  CHECK_EQ(registered_names(), "CountInC TanhInC ");
  api().unload_library(library("good").c_str());
}

TEST(nested_loads_register_each_library_once) {
  setenv("BRINGUP_TEST_NESTED_SELF", library("nested").c_str(), 1);
  setenv("BRINGUP_TEST_NESTED_OTHER", library("good").c_str(), 1);
  CHECK_EQ(api().load_library(library("nested").c_str(), nullptr), BRINGUP_ENGINE_OK);
  CHECK_EQ(registered_names(), "Nested CountInC TanhInC ");
  bringup::engine::PluginLoader::instance().unload_all();
  CHECK_EQ(registered_names(), "");
  unsetenv("BRINGUP_TEST_NESTED_SELF");
  unsetenv("BRINGUP_TEST_NESTED_OTHER");
}

TEST(threads_load_one_library_once) {
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int index = 0; index < 8; ++index) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        uint32_t count = 0;
        if (api().load_library(library("good").c_str(), &count) != 0 || count != 2) ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(failed.load(), 0);
  CHECK_EQ(registered_names(), "CountInC TanhInC ");
  api().unload_library(library("good").c_str());
}

TEST(concurrent_nested_loads_neither_deadlock_nor_register_twice) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("bringup_nested_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  // The same library under two names; both load the first one too.
  const std::string a = (folder / "a.so").string(), b = (folder / "b.so").string();
  std::filesystem::copy_file(library("nested"), a,
                             std::filesystem::copy_options::overwrite_existing);
  setenv("BRINGUP_TEST_NESTED_OTHER", library("good").c_str(), 1);
  setenv("BRINGUP_TEST_NESTED_SELF", a.c_str(), 1);
  std::thread first([&] { api().load_library(a.c_str(), nullptr); });
  std::thread second([&] { api().load_library(library("nested").c_str(), nullptr); });
  first.join();
  second.join();
  CHECK(contains(registered_names(), "Nested CountInC TanhInC"));
  bringup::engine::PluginLoader::instance().unload_all();
  unsetenv("BRINGUP_TEST_NESTED_SELF");
  unsetenv("BRINGUP_TEST_NESTED_OTHER");
  std::filesystem::remove_all(folder);
}

// What runs keeps its library, and unloading waits for nobody.
TEST(library_stays_mapped_as_long_as_something_refers_to_it) {
  REQUIRE(api().load_library(library("good").c_str(), nullptr) == BRINGUP_ENGINE_OK);
  auto held = bringup::engine::Registry::instance().find("CountInC");
  api().unload_library(library("good").c_str());
  CHECK(is_mapped(library("good")));
  CHECK_EQ(registered_names(), "");
  held.reset();
  CHECK(!is_mapped(library("good")));
}

TEST(changed_library_is_loaded_anew_while_the_former_is_still_in_use) {
  namespace fs = std::filesystem;
  const fs::path folder =
      fs::temp_directory_path() / ("bringup_changed_" + std::to_string(getpid()));
  fs::create_directories(folder);
  const fs::path path = folder / "x.so";
  fs::copy_file(library("good"), path);
  REQUIRE(api().load_library(path.c_str(), nullptr) == BRINGUP_ENGINE_OK);
  auto held = bringup::engine::Registry::instance().find("CountInC");
  fs::copy_file(library("nested"), folder / "new.so");
  fs::rename(folder / "new.so", path);
  for (int round = 0; round < 2; ++round) {
    CHECK_EQ(api().load_library(path.c_str(), nullptr), BRINGUP_ENGINE_OK);
    CHECK_EQ(registered_names(), "Nested ");
    api().unload_library(path.c_str());
  }
  held.reset();
  fs::remove_all(folder);
}
