#include "torch/common/kernel_call.h"

#include <c10/util/Exception.h>
#include <cxxabi.h>

#include <exception>

#include "runtime/error_slot.h"
#include "runtime/view_refusal.h"
#include "torch/common/errors.h"

namespace bringup::torch_ext {
namespace {

// The text of the exception in flight; that of a view needs no `advice`.
std::string exception_text(const std::string& advice) {
  try {
    throw;
  } catch (const abi::__forced_unwind&) {
    throw;  // the thread is being ended, which nothing may stop
  } catch (const runtime::ViewError& error) {
    return error.what();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace() + advice;
  } catch (const std::exception& error) {
    return error.what() + advice;
  } catch (...) {
    return "something that is no std::exception" + advice;
  }
}

}  // namespace

void raise_kernel_status(const std::string& operator_name, int32_t status) {
  const std::string reason = runtime::take_last_error();
  raise_error(ErrorClass::kKernel, operator_name, ": the kernel failed with status ", status, ": ",
              (reason.empty() ? "it gave no reason (ctx->set_error was not called)" : reason));
}

void raise_kernel_exception(const std::string& operator_name, const char* what,
                            const char* advice) {
  const std::string reason = exception_text(std::string(" (") + advice + ")");
  runtime::take_last_error();  // not for the next kernel that fails
  raise_error(ErrorClass::kKernel, operator_name, ": ", what, ": ", reason);
}

}  // namespace bringup::torch_ext
