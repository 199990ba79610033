// Functions of other people's libraries as kernels: each bound function gets an entry of kernel.h's
// form that reads the arguments its parameters ask for and calls it. No compiler is needed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/c_parameter.h"
#include "runtime/export.h"
#include "runtime/kernel_table.h"
#include "runtime/values_code.h"

namespace bringup::runtime {

enum class CConvention : uint8_t {
  kStatus,     // int f(...), 0 = ok
  kVoid,       // void f(...)
  kTvmFfi,     // int f(void* handle, const TVMFFIAny* args, int32_t n, TVMFFIAny* result)
  kValues,     // void f(const bringup_position* at, ...), once a thread of a grid
  kTvmTensor,  // as kTvmFfi; returns a Tensor, which is copied to the last argument
};

// Loads the library at `path` and puts `symbol` of it, bound to these parameters, into the kernel
// table; `arguments` are the names of what it is called with, for messages; `size` is given with
// kValues alone, whose kernel is device code: then `opens` may be false, for a file that only a
// driver can read. Throws
// std::runtime_error when the library or the symbol is not there, when there are more
// parameters than a call carries, and when the process has bound too many functions.
BRINGUP_API KernelId bind_c_function(const std::string& path, const std::string& symbol,
                                     CConvention convention, std::vector<CParameter> parameters,
                                     std::vector<std::string> arguments,
                                     std::optional<LaunchSize> size = std::nullopt,
                                     bool opens = true);

}  // namespace bringup::runtime
