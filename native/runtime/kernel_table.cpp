#include "runtime/kernel_table.h"

#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "engine/util/forever.h"
#include "runtime/view_refusal.h"

namespace bringup::runtime {
namespace {

struct State {
  std::mutex mutex;
  std::unordered_map<KernelId, std::shared_ptr<const Kernel>> kernels;
  KernelId next = 1;
};

State& state() { return forever<State>(); }

// A kernel may say which ABI it was written for.
void check_abi(const Library& library) {
  const auto* abi = static_cast<const int32_t*>(library.find_symbol("bringup_abi"));
  if (abi == nullptr || (*abi >= 1 && *abi <= BRINGUP_KERNEL_ABI)) return;
  throw std::runtime_error(library.path() + " was built for kernel ABI " + std::to_string(*abi) +
                           ", this bringup speaks 1 to " + std::to_string(BRINGUP_KERNEL_ABI) +
                           ": install a newer bringup or rebuild the kernel");
}

}  // namespace

KernelId load_kernel(const std::string& path, const std::string& entry, KernelKind kind) {
  auto library = Library::open(path);
  let_views_refuse(*library);
  check_abi(*library);
  const auto run = reinterpret_cast<bringup_kernel_fn>(library->symbol(entry));
  const auto can_implement =
      reinterpret_cast<bringup_can_implement_fn>(library->find_symbol("bringup_can_implement"));
  return KernelTable::instance().add({entry, run, kind, std::move(library), can_implement});
}

KernelId keep_device_code(const std::string& path, const std::string& entry) {
  return KernelTable::instance().add(
      {entry, nullptr, KernelKind::kDeviceCode, Library::unopened(path)});
}

KernelTable& KernelTable::instance() {
  static KernelTable table;
  return table;
}

KernelId KernelTable::add(Kernel kernel) {
  return add(std::make_shared<const Kernel>(std::move(kernel)));
}

KernelId KernelTable::add(std::shared_ptr<const Kernel> kernel) {
  std::lock_guard lock(state().mutex);
  const KernelId id = state().next++;
  state().kernels.emplace(id, std::move(kernel));
  return id;
}

std::shared_ptr<const Kernel> KernelTable::get(KernelId id) const {
  if (auto kernel = find(id)) return kernel;
  throw std::out_of_range("no kernel " + std::to_string(id) + " in the kernel table");
}

std::shared_ptr<const Kernel> KernelTable::find(KernelId id) const noexcept {
  std::lock_guard lock(state().mutex);
  const auto found = state().kernels.find(id);
  return found == state().kernels.end() ? nullptr : found->second;
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

bool KernelTable::release_unused(KernelId id) {
  std::shared_ptr<const Kernel> last;  // a library is closed after the lock is gone
  std::lock_guard lock(state().mutex);
  const auto found = state().kernels.find(id);
  if (found == state().kernels.end()) return true;
  // Nothing can take another reference while the table is locked: it gives them out.
  const std::shared_ptr<const Kernel>& kernel = found->second;
  if (kernel.use_count() > 1 || kernel->library.use_count() > 1) return false;
  last = std::move(found->second);
  state().kernels.erase(found);
  return true;
}

}  // namespace bringup::runtime
