// Kernels that other code registered for the device. They start their work themselves, so a
// graph cannot hold it, and the CPU's kernel in their place would give other numbers.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <optional>
#include <string>

namespace bringup::torch_ext::graphs {

// Where the kernel comes from that runs a call of `op` on the device, if another library's: the
// operator's own, or that of the out form that serves it. Collectives count as the
// driver's.
std::optional<std::string> foreign_device_kernel(const c10::OperatorHandle& op);

// Watches what an operator that is made of others calls with tensors of the device on this thread.
class ForeignCalls {
 public:
  ForeignCalls();
  ~ForeignCalls();
  ForeignCalls(const ForeignCalls&) = delete;
  ForeignCalls& operator=(const ForeignCalls&) = delete;

  // The first such kernel with its operator; none until now.
  const std::optional<std::string>& found() const { return found_; }

 private:
  static std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& call);

  std::optional<std::string> found_;
  ForeignCalls* const former_;
  const at::CallbackHandle handle_;
};

}  // namespace bringup::torch_ext::graphs
