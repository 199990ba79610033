// The kernel of an operator, as all of native/torch knows it: an operator that kernel_op defined
// (record.h), or one of torch to which devices.kernel gave a kernel (operators/operator_kernel.h).
// The graph recorder builds kernel nodes from this.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/contract.h"
#include "runtime/kernel_table.h"
#include "runtime/launch_block.h"
#include "runtime/variant_table.h"
#include "torch/common/argument.h"
#include "torch/devices/driver.h"

namespace bringup::torch_ext {

struct Variant;

// A call with its arguments packed: what starts it at any time, from addresses as they were.
struct PackedCall {
  std::shared_ptr<const runtime::Kernel> kernel;
  runtime::LaunchBlock block;
  Grid grid;
  int32_t random = -1;  // of the block's arguments the one that put_random fills; -1 for none
  const Variant* listed = nullptr;  // that has an entry for several such calls; null: none
};

// The entry of a pointwise kernel that makes several calls in one launch.
struct ListEntry final : LastingKernel {
  int32_t calls = 0;  // at most
};

// A binary for calls with one key. Published once and never freed, so that it can be read without a
// lock.
struct Variant : LastingKernel {
  // Of devices.kernel's, which has no kernel where such calls fall back: the dtypes of the results,
  // and the one that chose the binary.
  c10::SmallVector<at::ScalarType, 2> results;
  at::ScalarType computed = at::ScalarType::Undefined;
  // Of a pointwise kernel with plain values: the entry for operands that are dense. Null: none.
  std::unique_ptr<LastingKernel> dense;
  // For calls whose arguments follow each other: of kernel.h's form, or plain values of dense ones.
  std::unique_ptr<ListEntry> list;
};

// Lives until the process ends: calls, variants and graphs refer to it.
struct KernelRecord {
  // With the GIL. Raises SchemaError when there are more than keys can number.
  explicit KernelRecord(c10::OperatorHandle op);
  virtual ~KernelRecord() = default;
  KernelRecord& operator=(KernelRecord&&) = delete;

  // Whether calls on such a device run it.
  virtual bool runs_on(c10::DeviceType device) const = 0;
  // Whether input number `argument` is passed to the kernel as it lies in memory; otherwise it is
  // passed as a contiguous copy.
  virtual bool takes_layout(size_t argument, const at::Tensor& tensor) const = 0;
  // The call with these inputs (schema order) into these fresh outputs, which have to fit; the
  // kernel is compiled now if this is its first use. None where it does not run the kernel alone.
  virtual std::optional<PackedCall> pack(c10::ArrayRef<c10::IValue> inputs,
                                         c10::ArrayRef<at::Tensor> outputs) const = 0;
  // The arguments of a call that check_captured let pass, for the kernel and blocks of `captured`:
  // nothing is chosen or computed anew.
  virtual runtime::LaunchBlock pack_again(c10::ArrayRef<c10::IValue> inputs,
                                          c10::ArrayRef<at::Tensor> outputs,
                                          const PackedCall& captured) const = 0;
  // Raises ContractError when a call with these inputs breaks the input contract, or would run
  // another kernel, give fresh outputs of other shapes or start another number of blocks: a
  // captured call cannot follow there.
  virtual void check_captured(c10::ArrayRef<c10::IValue> inputs, c10::ArrayRef<at::Tensor> outputs,
                              const PackedCall& captured) const = 0;

  const c10::OperatorHandle handle;
  const c10::impl::OperatorEntry& entry;
  const std::string name;  // "aten::add.Tensor"
  const std::vector<Argument> arguments;
  const uint32_t number;        // in keys; never given twice
  PyObject* compile = nullptr;  // owned: says which binary runs for a call
  std::atomic<bool> enabled{true};
  std::vector<c10::RegistrationHandleRAII> registrations;
  mutable std::atomic<int64_t> variant_count{0};
};

// Puts a finished record under its operator, where find_kernel finds it.
void publish(std::unique_ptr<KernelRecord> record);
// Lets find_kernel find `record` under another operator too, which runs it and returns nothing.
void publish_without_returns(const KernelRecord& record, const c10::OperatorHandle& other);
// Takes the operator's kernels out of the dispatcher. False if that was done already.
bool close(KernelRecord& record);
// The enabled kernel behind a dispatcher operator, or null when it has none of ours. Lock-free.
const KernelRecord* find_kernel(const c10::OperatorHandle& op);
// Whether `holds` says so of an enabled record.
bool any_kernel(const std::function<bool(const KernelRecord&)>& holds);

// A key that begins with what no other operator's begins with.
inline runtime::KeyPacker key_of(const KernelRecord& record) {
  runtime::KeyPacker packer;
  packer.put(record.number, runtime::kOperatorBits);
  return packer;
}
// The variant under a key, or null.
const Variant* find_variant(const runtime::Key128& key);
// Puts a variant under a key unless another thread has put one there: what is there now.
const Variant& publish_variant(const KernelRecord& record, const runtime::Key128& key,
                               std::unique_ptr<Variant> variant);

}  // namespace bringup::torch_ext
