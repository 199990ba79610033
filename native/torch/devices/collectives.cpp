// Collectives on the device: torch's own error where no backend has them, with what to do.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <string>

#include "torch/devices/state.h"

namespace bringup::torch_ext {
namespace {

// torch's own kernels come next: they find the backend that a vendor may have registered.
void add_remedy(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  try {
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  } catch (const c10::Error& error) {
    const std::string said = error.what_without_backtrace();
    const std::string name = driver_facts().device_name;
    if (said.find("device type " + name) == std::string::npos) throw;
    TORCH_CHECK(false, said, ": this process group has no backend for device '", name, "', which ",
                op.operator_name().name, " needs: make it with init_process_group(\"cpu:gloo,",
                name, ":bringup\"), or new_group(backend=...) likewise");
  }
}

// The fallback would reduce a copy of them, and leave them as they are.
void refuse_sparse(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.operator_name().name, " got a sparse tensor of device '",
                              driver_facts().device_name,
                              "': collectives take dense ones, tensor.to_dense()");
}

}  // namespace

void register_collectives() {
  static auto* library = new torch::Library(
      torch::Library::IMPL, "c10d", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  static auto* sparse = new torch::Library(torch::Library::IMPL, "c10d",
                                           c10::DispatchKey::SparsePrivateUse1, __FILE__, __LINE__);
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.getNamespace() != "c10d") continue;
    library->impl(c10::toString(name).c_str(),
                  torch::CppFunction::makeFromBoxedFunction<&add_remedy>());
    sparse->impl(c10::toString(name).c_str(),
                 torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
  }
}

}  // namespace bringup::torch_ext
