// Output rules and the input contract, as this library evaluates them before a kernel runs.
// src/bringup/ops/contract/constraints.py writes them and evaluates the same program with SymInts
// for fake and meta tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/contract.h"
#include "runtime/expression.h"
#include "torch/common/argument.h"

namespace bringup::torch_ext {

class CallFrame;

using runtime::CheckKind;
using runtime::Expression;

// The whole number that an expression is for a frame that has looked at its tensors. Raises
// ContractError for a missing dimension, a division by zero and an overflow.
int64_t evaluate(const Expression& expression, const CallFrame& frame);

// One item of a shape: an expression, or a slice of a tensor's sizes or of an int[] argument.
struct Dimension {
  Expression size;
  int32_t sliced_argument = -1;  // -1: `size` counts
  int64_t start = 0;
  int64_t stop = 0;
};

using Sizes = c10::SmallVector<int64_t, 6>;

// Evaluates the items into `sizes`.
void evaluate_shape(const std::vector<Dimension>& shape, const CallFrame& frame, Sizes& sizes);

// How one fresh output is allocated, on the device of the first tensor argument.
struct OutputRule {
  int32_t like = -1;    // a tensor argument whose sizes it has; -1: `shape` counts
  bool list = false;    // `like` is a Tensor[]: one tensor like each of its elements
  bool number = false;  // without dimensions; the operator returns what is in it
  std::vector<Dimension> shape;
  // The Tensor or ScalarType argument whose dtype it has; -1: `promoted` counts.
  int32_t dtype_of = -1;
  // Arguments whose dtypes are promoted as torch.result_type does; none: `dtype` counts.
  std::vector<int32_t> promoted;
  at::ScalarType dtype = at::kFloat;
  // Preserve: the strides that torch.empty_like gives for `like`.
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  int32_t count = -1;         // the count written by the kernel that is its first size; -1: none
  int32_t when = -1;          // a bool or bool[] argument without which it has no elements
  int32_t when_element = -1;  // of a bool[]

  // The sizes of one tensor; in `computed` where they are not an argument's. `output` is its
  // number, for errors.
  at::IntArrayRef sizes_for(const CallFrame& frame, int output, Sizes& computed) const;
  // One tensor, or those of a list.
  void allocate(CallFrame& frame, int output) const;
  // A ScalarType argument that is None stands for the dtype of the first tensor.
  at::ScalarType dtype_for(const CallFrame& frame) const;

 private:
  at::Tensor allocate_one(const CallFrame& frame, int output) const;
  at::Tensor allocate_formatted(const CallFrame& frame, int output, at::IntArrayRef sizes,
                                at::ScalarType type) const;
  bool is_wanted(const CallFrame& frame) const;
};

// One declared check of the input contract. Arguments that are None are left out. kDtype may name a
// ScalarType argument.
struct Check {
  CheckKind kind;
  std::vector<int32_t> arguments;
  std::vector<Dimension> shape;        // kShape; the one number of kLength and kRank
  std::vector<at::ScalarType> dtypes;  // kDtype

  // Raises ContractError.
  void verify(const CallFrame& frame) const;
};

// "[2, 3]"
std::string sizes_text(at::IntArrayRef sizes);

}  // namespace bringup::torch_ext
