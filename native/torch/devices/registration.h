// How the kit puts its kernels into the dispatcher: never before another library's. Who registers
// later wins there, and a vendor's library may have been loaded before the driver.
#pragma once

#include <torch/library.h>

#include <optional>
#include <string>

namespace bringup::torch_ext {

// A library whose kernels stay out where an operator has one for this key; restore_kit_kernel puts
// one in when that is gone.
class KitLibrary {
 public:
  KitLibrary(const char* ns, c10::DispatchKey key, const char* file, uint32_t line)
      : ns_(ns), key_(key), library_(torch::Library::IMPL, ns, key, file, line) {}

  template <class Function>
  KitLibrary& impl(const char* name, Function&& function) & {
    add(name, torch::CppFunction(std::forward<Function>(function)));
    return *this;
  }

 private:
  void add(const char* name, torch::CppFunction function);

  const std::string ns_;
  const c10::DispatchKey key_;
  torch::Library library_;
};

// Whether other code had a kernel for the device before the kit came to it.
bool has_left_out() noexcept;
void note_left_out() noexcept;
// Registers the kit's kernel that stayed out, when no other is left. False where there was
// nothing to do.
bool restore_kit_kernel(const c10::OperatorName& op);
// The same for all operators, the fallback's own included.
void restore_kit_kernels();

// Where the kernel comes from that other code registered for this operator on the device, as
// the dispatcher tells it; none for the kit's own and those of devices.kernel.
std::optional<std::string> foreign_kernel(const c10::OperatorHandle& op);
// What the dispatcher says of a kernel that kernel_op registers.
inline constexpr char kKernelOpDebug[] = "bringup";

}  // namespace bringup::torch_ext
