// Variants: which binary of an operator runs for a call. The key packs what chooses it: the
// operator, the device type and the declared dtypes, layouts, choices and buckets, each in bits of
// its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/contract.h"
#include "torch/ops/kernel_record.h"
#include "torch/ops/rules.h"

namespace bringup::torch_ext {

class CallFrame;
struct KernelOp;

using runtime::KeyFieldKind;
using runtime::Layout;

// A set of layouts, one bit for each.
using LayoutMask = uint8_t;
constexpr LayoutMask kAnyLayout = 0xff;

// The layout of a tensor if it is in the set; false when it is not. _language/signature.py says
// the same.
bool layout_among(const at::Tensor& tensor, LayoutMask allowed, Layout& layout);

// One declared property of a call that chooses the binary.
struct KeyField {
  KeyFieldKind kind;
  int32_t argument = -1;  // kDtype: past the inputs it is an output
  int bits = 1;
  LayoutMask layouts = 0;            // kLayout
  std::vector<std::string> choices;  // kChoice of a str argument
  std::vector<int64_t> numbers;      // kChoice of an int or bool argument
  Expression predicate;              // kBucket
};

// The variant for a frame whose contract was checked; compiled now if this is its first use. Needs
// no GIL. Raises ContractError for a choice that is not declared.
const Variant& variant_for(const KernelOp& op, const CallFrame& frame);

// The key of a frame.
runtime::Key128 variant_key(const KernelOp& op, const CallFrame& frame);

}  // namespace bringup::torch_ext
