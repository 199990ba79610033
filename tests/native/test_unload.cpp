// Unloading: a library is closed when nothing but the table holds its kernel, whoever runs it
// meanwhile, and leaving the process in any order is clean (the sanitizer build runs this too).
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "runtime/context.h"
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

int64_t call(const rt::Kernel& kernel, int64_t value) {
  void* args[] = {&value};
  const rt::HostContext context;
  return kernel.run(args, 1, context.get()) == 0 ? value : -1;
}

// What an operator or a graph is to the table: it goes when static objects do.
struct Holder {
  std::shared_ptr<const rt::Kernel> kernel;
  ~Holder() {
    if (kernel != nullptr && call(*kernel, 1) != 2) std::abort();
  }
};
Holder static_holder;

void hold_until_exit() {
  static Holder at_exit;
  at_exit.kernel = rt::KernelTable::instance().get(load_add_one());
}

TEST(a_kernel_that_nothing_holds_is_closed) {
  const rt::KernelId id = load_add_one();
  CHECK(is_mapped(kAddOne));
  CHECK(rt::KernelTable::instance().release_unused(id));
  CHECK(!is_mapped(kAddOne));
  CHECK(rt::KernelTable::instance().find(id) == nullptr);
  CHECK(rt::KernelTable::instance().release_unused(id));
}

TEST(a_kernel_that_somebody_holds_stays_under_its_number) {
  const rt::KernelId id = load_add_one();
  std::shared_ptr<const rt::Kernel> held = rt::KernelTable::instance().get(id);
  CHECK(!rt::KernelTable::instance().release_unused(id));
  CHECK(rt::KernelTable::instance().find(id) == held);
  CHECK_EQ(call(*held, 4), 5);
  held.reset();
  CHECK(rt::KernelTable::instance().release_unused(id));
  CHECK(!is_mapped(kAddOne));
}

TEST(whoever_holds_the_library_alone_keeps_it) {
  const rt::KernelId id = load_add_one();
  std::shared_ptr<rt::Library> library = rt::KernelTable::instance().get(id)->library;
  CHECK(!rt::KernelTable::instance().release_unused(id));
  library.reset();
  CHECK(rt::KernelTable::instance().release_unused(id));
}

TEST(nothing_is_closed_under_a_running_launch) {
  std::atomic<rt::KernelId> current{load_add_one()};
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 3; ++t) {
    callers.emplace_back([&] {
      for (int64_t i = 0; i < 2000; ++i) {
        const auto kernel = rt::KernelTable::instance().find(current.load());
        if (kernel != nullptr && call(*kernel, i) != i + 1) ++wrong;
      }
    });
  }
  std::thread unloader([&] {
    while (!stop.load()) {
      if (rt::KernelTable::instance().release_unused(current.load())) current = load_add_one();
    }
  });
  for (std::thread& caller : callers) caller.join();
  stop = true;
  unloader.join();
  CHECK_EQ(wrong.load(), 0);
  CHECK(rt::KernelTable::instance().release_unused(current.load()));
}

TEST(holders_may_go_after_main_in_any_order) {
  hold_until_exit();
  static_holder.kernel = rt::KernelTable::instance().get(load_add_one());
  std::atexit([] { static_holder.kernel.reset(); });
  CHECK(!rt::KernelTable::instance().release_unused(load_add_one() - 1));
}

}  // namespace
