// What a function is given: an expression over a kernel's arguments, and how its value is passed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/expression.h"

namespace bringup::runtime {

// One parameter of a function.
struct CParameter {
  Expression value;
  // What the value is, and so how it is passed.
  enum class Kind : uint8_t {
    kInt,
    kFloat64,
    kFloat32,
    kPointer,
    kBool,
    kText,
    kTensor,  // from here on of tvm-ffi alone
    kDtype,
    kDevice,
    kInts,  // lists
    kFloats,
    kBools,
    kTensors
  };
  Kind kind = Kind::kInt;
  bool by_reference = false;
  bool bounded = false;  // an integer must be within [lowest, highest]
  int64_t lowest = 0;
  int64_t highest = 0;
  bool optional = false;  // None is passed as None (tvm-ffi only)
  uint32_t bytes = 8;     // of a number in a launch with plain values
};

// A reason that lives until the next one on this thread.
const char* refuse(const std::string& reason);

// A value of an expression or parameter; `reason`: it holds none, as by refuse().
Value read_expression(const Expression& expression, const std::vector<std::string>& names,
                      void* const* args, const bringup_ctx* ctx, bool allocates,
                      const char*& reason);
Value read_parameter(const CParameter& parameter, const std::vector<std::string>& names,
                     void* const* args, const bringup_ctx* ctx, bool allocates,
                     const char*& reason);

}  // namespace bringup::runtime
