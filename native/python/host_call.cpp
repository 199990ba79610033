#include "python/host_call.h"

#include <cxxabi.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <exception>
#include <optional>
#include <string>
#include <tuple>

#include "runtime/context.h"
#include "runtime/error_slot.h"
#include "runtime/kernel_table.h"

namespace nb = nanobind;

namespace bringup::python {
namespace {

using Outcome = std::tuple<int32_t, std::optional<std::string>, std::optional<std::string>>;

// The text of the exception in flight.
std::string exception_text() {
  try {
    throw;
  } catch (const abi::__forced_unwind&) {
    throw;  // the thread is being ended, which nobody may stop
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "something that is no std::exception";
  }
}

// (status, what the kernel said, what it threw)
Outcome call_kernel(runtime::KernelId id, uintptr_t args, int32_t n) {
  const auto kernel = runtime::KernelTable::instance().get(id);
  const runtime::HostContext context;
  try {
    const int32_t status = kernel->run(reinterpret_cast<void**>(args), n, context.get());
    if (status == 0) return {0, std::nullopt, std::nullopt};
    return {status, runtime::take_last_error(), std::nullopt};
  } catch (...) {
    std::string text = exception_text();
    runtime::take_last_error();  // not for the next kernel that fails
    return {0, std::nullopt, std::move(text)};
  }
}

// (0, the reason why the kernel cannot run this call, what it threw)
Outcome ask_kernel(runtime::KernelId id, uintptr_t args, int32_t n) {
  const auto kernel = runtime::KernelTable::instance().get(id);
  if (kernel->can_implement == nullptr) return {0, std::nullopt, std::nullopt};
  const runtime::HostContext context;
  try {
    const char* reason = kernel->can_implement(reinterpret_cast<void**>(args), n, context.get());
    if (reason == nullptr) return {0, std::nullopt, std::nullopt};
    return {0, std::string(reason), std::nullopt};
  } catch (...) {
    return {0, std::nullopt, exception_text()};
  }
}

}  // namespace

void bind_host_call(nb::module_& module) {
  module.def("call_kernel", &call_kernel, nb::arg("id"), nb::arg("args"), nb::arg("n"),
             nb::call_guard<nb::gil_scoped_release>(),
             "Calls a kernel on this thread; `args` is the address of its argument array. "
             "(status, its message, what it threw).");
  module.def("ask_kernel", &ask_kernel, nb::arg("id"), nb::arg("args"), nb::arg("n"),
             nb::call_guard<nb::gil_scoped_release>(),
             "The same for bringup_can_implement: (0, the reason or None, what it threw).");
}

}  // namespace bringup::python
