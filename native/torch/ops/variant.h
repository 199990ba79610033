// Variants: which binary of an operator runs for a call. The key packs what chooses it: the
// operator, the device type and the declared dtypes, layouts, choices and buckets, each in bits of
// its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/contract.h"
#include "runtime/kernel_table.h"
#include "runtime/variant_table.h"
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

// A binary for one key. Published once and never freed, so that it can be read without a lock.
struct Variant {
  std::shared_ptr<const runtime::Kernel> kernel;
};

// The variant for a frame whose contract was checked; compiled now if this is its first use. Needs
// no GIL. Raises ContractError for a choice that is not declared.
const Variant& variant_for(const KernelOp& op, const CallFrame& frame);

// The same if it is there already, else null.
const Variant* find_variant(const KernelOp& op, const CallFrame& frame);

// The key of a frame.
runtime::Key128 variant_key(const KernelOp& op, const CallFrame& frame);

}  // namespace bringup::torch_ext
