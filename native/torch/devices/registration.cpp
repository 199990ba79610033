#include "torch/devices/registration.h"

#include <atomic>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/util/forever.h"
#include "torch/devices/fallback.h"

namespace bringup::torch_ext {
namespace {

struct LeftOut {
  torch::Library* library;
  torch::CppFunction function;
};

// Of PrivateUse1. Never destroyed: the dispatcher may be gone by then.
struct AllLeftOut {
  std::mutex mutex;
  std::unordered_map<c10::OperatorName, LeftOut> kernels;
};

std::atomic<bool> g_has_left_out{false};

AllLeftOut& left_out() { return forever<AllLeftOut>(); }

// What the dispatcher says of kernels that are registered in this folder.
constexpr std::string_view kFile = __FILE__;
constexpr std::string_view kFolder = kFile.substr(0, kFile.rfind('/') + 1);
constexpr std::string_view kRegisteredAt = "registered at ";

bool is_of_the_kit(std::string_view told) {
  return told == kKernelOpDebug || told.ends_with(" by devices.kernel") ||
         (told.starts_with(kRegisteredAt) &&
          told.substr(kRegisteredAt.size()).starts_with(kFolder));
}

}  // namespace

void KitLibrary::add(const char* name, torch::CppFunction function) {
  std::string full(name);
  if (full.find("::") == std::string::npos) full = ns_ + "::" + full;
  const size_t dot = full.find('.');
  const c10::OperatorName op(full.substr(0, dot),
                             dot == std::string::npos ? "" : full.substr(dot + 1));
  const auto handle = c10::Dispatcher::singleton().findSchema(op);
  if (!handle.has_value() || !handle->hasKernelForDispatchKey(key_)) {
    library_.impl(name, std::move(function));
    return;
  }
  if (key_ != c10::DispatchKey::PrivateUse1) return;
  AllLeftOut& all = left_out();
  const std::lock_guard lock(all.mutex);
  all.kernels.emplace(op, LeftOut{&library_, std::move(function)});
  note_left_out();
}

bool has_left_out() noexcept { return g_has_left_out.load(std::memory_order_relaxed); }

void note_left_out() noexcept { g_has_left_out.store(true, std::memory_order_relaxed); }

bool restore_kit_kernel(const c10::OperatorName& op) {
  AllLeftOut& all = left_out();
  const std::lock_guard lock(all.mutex);
  const auto found = all.kernels.find(op);
  const auto handle = c10::Dispatcher::singleton().findSchema(op);
  if (found == all.kernels.end() || !handle.has_value() ||
      handle->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
    return false;
  }
  const std::string name = op.overload_name.empty() ? op.name : op.name + "." + op.overload_name;
  found->second.library->impl(name.c_str(), std::move(found->second.function));
  all.kernels.erase(found);
  return true;
}

void restore_kit_kernels() {
  if (!has_left_out()) return;
  std::vector<c10::OperatorName> names;
  {
    AllLeftOut& all = left_out();
    const std::lock_guard lock(all.mutex);
    for (const auto& [name, kernel] : all.kernels) names.push_back(name);
  }
  for (const c10::OperatorName& name : names) restore_kit_kernel(name);
  restore_fallbacks();
}

std::optional<std::string> foreign_kernel(const c10::OperatorHandle& op) {
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) return std::nullopt;
  std::string told = op.getComputedKernelForDispatchKey(c10::DispatchKey::PrivateUse1).debug();
  if (is_of_the_kit(told)) return std::nullopt;
  return told;
}

}  // namespace bringup::torch_ext
