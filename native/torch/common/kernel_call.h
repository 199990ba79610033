// Calling a kernel on this thread: whatever goes wrong in it becomes a KernelError that names the
// operator.
#pragma once

#include <c10/macros/Macros.h>

#include <string>

#include "bringup/kernel.h"

namespace bringup::torch_ext {

// Raises KernelError for a status that is not 0: the status and the error slot's message.
[[noreturn]] void raise_kernel_status(const std::string& operator_name, int32_t status);

// Inside a catch block: raises KernelError for what was thrown. `what` says by whom, `advice` what
// it should do instead.
[[noreturn]] void raise_kernel_exception(
    const std::string& operator_name, const char* what = "the kernel threw",
    const char* advice = "a kernel should return a status and call ctx->set_error");

// Needs no GIL. Inline, because a captured graph calls a kernel in nanoseconds.
inline void call_kernel(bringup_kernel_fn run, void** args, int32_t n, const bringup_ctx* ctx,
                        const std::string& operator_name) {
  int32_t status = 0;
  try {
    status = run(args, n, ctx);
  } catch (...) {
    raise_kernel_exception(operator_name);
  }
  if (C10_UNLIKELY(status != 0)) raise_kernel_status(operator_name, status);
}

}  // namespace bringup::torch_ext
