// The expression language: what a text says about a kernel's arguments, as a postfix program over
// the arguments as kernel.h passes them. src/bringup/_language/reader.py writes the programs,
// Expression.evaluate there gives the same results with the same words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bringup/kernel.h"
#include "runtime/export.h"

namespace bringup::runtime {

// What an instruction does: None counts as 0 or null, true is 1, kAnd and kOr evaluate both sides.
enum class Opcode : uint8_t {
  kConstant,  // value (an integer, or the bits of a double)
  kText,      // Expression::texts[value]
  kInt,       // an int, bool or ScalarType argument
  kFloat,
  kReal,  // of a Scalar
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
  kSizeAlong,  // dimension as argument `value` says; a tensor without dimensions has one of size 1
  kStrideAlong,
  kElement,   // number `value` of an int[] or bool[]; what a list has not is as None
  kItemData,  // of tensor number `value` of a Tensor[], likewise
  kItemNumel,
  kStream,  // of the call
  kDevice,
  kFault,      // the word that a launch with plain values gives; its rules are Expression::texts
  kWorkspace,  // from here on: operators over the stack
  kNot,
  kSizeOr,  // of the dimension that `value` names where there is one, else as it is
  kStrideOr,
  kAdd,
  kSubtract,
  kMultiply,
  kFloorDivide,  // Python's rounding: towards minus infinity
  kModulo,       // the remainder has the sign of the divisor
  kLess,
  kEqual,
  kMinimum,
  kAnd,
  kOr,
};

struct Instruction {
  Opcode opcode;
  int32_t argument = -1;
  int64_t value = 0;

  // Of kSizeOr and kStrideOr: which item of a list, or -1 for the argument itself; which dimension.
  int64_t item() const { return value >> 32; }
  int32_t dimension() const { return static_cast<int32_t>(value); }
};

// `text` is what the user wrote, for messages.
struct Expression {
  std::string text;
  std::vector<Instruction> program = {};
  std::vector<std::string> texts = {};  // literals of the program
};

// What a program leaves: an integer, an address, or the bits of a double.
union Value {
  int64_t integer;
  double floating;
  const void* pointer;
};

// Why there is no value.
struct Failure {
  enum class Reason : uint8_t {
    kNone,
    kDimension,
    kAlong,
    kDivision,
    kOverflow,
    kWorkspace,
    kMemory
  };
  Reason reason = Reason::kNone;
  int32_t argument = -1;             // kDimension, kAlong: of which argument
  int64_t number = 0;                // the dimension, or the bytes
  const DLTensor* tensor = nullptr;  // kDimension, kAlong

  explicit operator bool() const { return reason != Reason::kNone; }
};

// Runs a checked program. `args` are those of a kernel's entry; data pointers are read by kData
// alone. `ctx` is for kStream, kDevice and kWorkspace, which allocates only where `allocates` says
// so. On failure the result is undefined.
BRINGUP_API Value evaluate(const Expression& expression, void* const* args, Failure& failure,
                           const bringup_ctx* ctx = nullptr, bool allocates = false);

// The failure in words; `name` is that of Failure::argument.
BRINGUP_API std::string describe(const Failure& failure, const Expression& expression,
                                 const std::string& name);

// Throws std::runtime_error for a program that does not leave one value on a stack of 16.
BRINGUP_API void check_program(const Expression& expression);

// torch's ScalarType number of a dtype, or -1; and back, with 0 bits for none.
BRINGUP_API int64_t scalar_type(DLDataType dtype);
BRINGUP_API DLDataType data_type(int64_t scalar_type);

}  // namespace bringup::runtime
