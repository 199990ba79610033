// The loader and the kernel table: lifetime of libraries, and what is said about bad ones.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"
#include "runtime/context.h"
#include "runtime/error_slot.h"
#include "runtime/kernel_table.h"

namespace rt = bringup::runtime;

namespace {

const std::string kAddOne = TEST_KERNELS "/add_one.so";

rt::KernelId load_add_one() { return rt::load_kernel(kAddOne, "run", rt::KernelKind::kHostEntry); }

bool is_mapped(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (handle != nullptr) dlclose(handle);
  return handle != nullptr;
}

TEST(a_kernel_runs_from_the_table) {
  const rt::KernelId id = load_add_one();
  int64_t value = 41;
  void* args[] = {&value};
  const rt::HostContext context;
  CHECK_EQ(rt::KernelTable::instance().get(id)->run(args, 1, context.get()), 0);
  CHECK_EQ(value, 42);
  CHECK(rt::KernelTable::instance().release(id));
}

TEST(a_failing_kernel_leaves_its_words) {
  const rt::KernelId id = load_add_one();
  int64_t value = -1;
  void* args[] = {&value};
  const rt::HostContext context;
  CHECK_EQ(rt::KernelTable::instance().get(id)->run(args, 1, context.get()), 7);
  CHECK_EQ(rt::take_last_error(), "the value is negative");
  CHECK_EQ(rt::take_last_error(), "");
  rt::KernelTable::instance().release(id);
}

TEST(a_library_stays_mapped_while_somebody_holds_its_kernel) {
  const rt::KernelId id = load_add_one();
  std::shared_ptr<const rt::Kernel> held = rt::KernelTable::instance().get(id);
  CHECK(rt::KernelTable::instance().release(id));
  CHECK(is_mapped(kAddOne));
  int64_t value = 1;
  void* args[] = {&value};
  const rt::HostContext context;
  CHECK_EQ(held->run(args, 1, context.get()), 0);
  held.reset();
  CHECK(!is_mapped(kAddOne));
}

TEST(an_unknown_kernel_is_refused_by_number) {
  const rt::KernelId id = load_add_one();
  CHECK(rt::KernelTable::instance().release(id));
  CHECK(!rt::KernelTable::instance().release(id));
  CHECK_THROWS(rt::KernelTable::instance().get(id), std::out_of_range,
               "no kernel " + std::to_string(id));
  CHECK_THROWS(rt::KernelTable::instance().get(0), std::out_of_range, "no kernel 0");
}

TEST(kernels_come_and_go_on_several_threads) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&wrong] {
      for (int i = 0; i < 50; ++i) {
        const rt::KernelId id = load_add_one();
        int64_t value = i;
        void* args[] = {&value};
        const rt::HostContext context;
        if (rt::KernelTable::instance().get(id)->run(args, 1, context.get()) != 0) ++wrong;
        if (value != i + 1 || !rt::KernelTable::instance().release(id)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
}

TEST(a_missing_library_is_named) {
  CHECK_THROWS(rt::Library::open("/nowhere/librms.so"), std::runtime_error, "/nowhere/librms.so");
  CHECK_THROWS(rt::Library::open(""), std::runtime_error, "empty path");
}

TEST(a_file_that_is_no_library_is_refused) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("bringup-no-library-" + std::to_string(getpid()) + ".so");
  std::ofstream(path) << "not ELF";
  CHECK_THROWS(rt::Library::open(path.string()), std::runtime_error, path.filename().string());
  std::filesystem::remove(path);
}

TEST(an_unresolved_function_is_found_when_loading) {
  CHECK_THROWS(rt::Library::open(TEST_KERNELS "/unresolved.so"), std::runtime_error,
               "nobody_defines_this");
}

TEST(a_kernel_of_a_later_abi_is_refused) {
  CHECK_THROWS(rt::load_kernel(TEST_KERNELS "/future_abi.so", "run", rt::KernelKind::kHostEntry),
               std::runtime_error,
               "was built for kernel ABI " + std::to_string(BRINGUP_KERNEL_ABI + 1));
}

TEST(a_missing_symbol_is_named_with_its_library) {
  const auto library = rt::Library::open(kAddOne);
  CHECK(library->find_symbol("walk") == nullptr);
  CHECK_THROWS(library->symbol("walk"), std::runtime_error, kAddOne + " exports no symbol 'walk'");
}

}  // namespace
