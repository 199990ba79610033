#include "runtime/kernel_table.h"

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

namespace bringup::runtime {
namespace {

struct State {
  std::mutex mutex;
  std::unordered_map<KernelId, std::shared_ptr<const Kernel>> kernels;
  KernelId next = 1;
};

// Never destroyed: operators may be torn down after static destructors have run.
State& state() {
  static auto* state = new State;
  return *state;
}

}  // namespace

KernelTable& KernelTable::instance() {
  static KernelTable table;
  return table;
}

KernelId KernelTable::add(Kernel kernel) {
  auto shared = std::make_shared<const Kernel>(std::move(kernel));
  std::lock_guard lock(state().mutex);
  const KernelId id = state().next++;
  state().kernels.emplace(id, std::move(shared));
  return id;
}

std::shared_ptr<const Kernel> KernelTable::get(KernelId id) const {
  std::lock_guard lock(state().mutex);
  const auto found = state().kernels.find(id);
  if (found == state().kernels.end()) {
    throw std::out_of_range("no kernel " + std::to_string(id) + " in the kernel table");
  }
  return found->second;
}

bool KernelTable::release(KernelId id) {
  std::shared_ptr<const Kernel> last;  // a library is closed after the lock is gone
  std::lock_guard lock(state().mutex);
  const auto found = state().kernels.find(id);
  if (found == state().kernels.end()) return false;
  last = std::move(found->second);
  state().kernels.erase(found);
  return true;
}

}  // namespace bringup::runtime
