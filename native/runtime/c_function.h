// Functions of other people's libraries as kernels: each bound function gets an entry of kernel.h's
// form that reads the arguments its parameters ask for and calls it. No compiler is needed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/export.h"
#include "runtime/expression.h"
#include "runtime/kernel_table.h"

namespace bringup::runtime {

// One parameter of a function.
struct CParameter {
  Expression value;
  // What the value is, and so how it is passed.
  enum class Kind : uint8_t { kInt, kFloat64, kFloat32, kPointer, kBool, kText, kTensor, kDtype };
  Kind kind = Kind::kInt;
  bool by_reference = false;
  bool bounded = false;  // an integer must be within [lowest, highest]
  int64_t lowest = 0;
  int64_t highest = 0;
  bool optional = false;  // None is passed as None (tvm-ffi only)
};

enum class CConvention : uint8_t {
  kStatus,  // int f(...), 0 = ok
  kVoid,    // void f(...)
  kTvmFfi,  // int f(void* handle, const TVMFFIAny* args, int32_t n, TVMFFIAny* result)
};

// Loads the library at `path` and puts `symbol` of it, bound to these parameters, into the kernel
// table; `arguments` are the names of what it is called with, for messages. Throws
// std::runtime_error when the library or the symbol is not there, when there are more
// parameters than a call carries, and when the process has bound too many functions.
BRINGUP_API KernelId bind_c_function(const std::string& path, const std::string& symbol,
                                     CConvention convention, std::vector<CParameter> parameters,
                                     std::vector<std::string> arguments);

}  // namespace bringup::runtime
