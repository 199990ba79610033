// Functions of other people's libraries as kernels: each bound function gets an entry of kernel.h's
// form that reads the arguments its parameters ask for and calls it. No compiler is needed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/export.h"
#include "runtime/kernel_table.h"

namespace bringup::runtime {

// One step of the program that computes a parameter's value on a small stack. The numbers are those
// of StepKind in bringup/_language/c_call.py.
struct CStep {
  enum class Op : uint8_t {
    kConstant,  // value (an integer, or the bits of a double)
    kText,      // CParameter::texts[value]
    kInt,       // arguments, by index; what is None reads as 0 or null
    kFloat,
    kString,
    kData,
    kListData,
    kTensor,  // the DLTensor itself
    kSize,    // dimension `value`, which counts from the end when it is negative
    kStride,
    kNumel,
    kNdim,
    kLength,
    kHas,
    kDtype,  // torch's ScalarType number
    kDtypeCode,
    kDtypeBits,
    kStream,  // of the call
    kDevice,
    kWorkspace,  // from here on: operators over the stack
    kAdd,
    kSubtract,
    kMultiply,
    kFloorDivide,
  };
  Op op;
  int32_t argument = -1;
  int64_t value = 0;
};

// One parameter of a function.
struct CParameter {
  // What the program leaves, and so how it is passed. The numbers are those of ValueKind.
  enum class Kind : uint8_t { kInt, kFloat64, kFloat32, kPointer, kBool, kText, kTensor, kDtype };

  std::string text;  // as the user wrote it, for messages
  Kind kind = Kind::kInt;
  int32_t bytes = 8;  // of an integer that is passed by reference
  bool by_reference = false;
  bool bounded = false;  // an integer must be within [lowest, highest]
  int64_t lowest = 0;
  int64_t highest = 0;
  bool optional = false;  // kInt, kFloat64, kBool: None is passed as None (tvm-ffi only)
  std::vector<CStep> program;
  std::vector<std::string> texts;
};

enum class CConvention : uint8_t {
  kStatus,  // int f(...), 0 = ok
  kVoid,    // void f(...)
  kTvmFfi,  // int f(void* handle, const TVMFFIAny* args, int32_t n, TVMFFIAny* result)
};

// Loads the library at `path` and puts `symbol` of it, bound to these parameters, into the kernel
// table. Throws std::runtime_error when the library or the symbol is not there, when there are more
// parameters than a call carries, and when the process has bound too many functions.
BRINGUP_API KernelId bind_c_function(const std::string& path, const std::string& symbol,
                                     CConvention convention, std::vector<CParameter> parameters);

}  // namespace bringup::runtime
