// Kernels for operators that exist: what devices.kernel registered for one overload, which binary
// runs for a call, and how a call becomes a launch.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>
#include <nanobind/nanobind.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/launch_block.h"
#include "torch/devices/fallback_policy.h"
#include "torch/ops/kernel_record.h"

namespace bringup::torch_ext {

constexpr int64_t kBlockElements = int64_t{1} << 16;  // that a block of a grid is worth
constexpr int64_t kMostBlocks = 64;
// Dimensions of what kernels with plain values get: of pointwise ones, and of reductions those of
// the results and as many that are reduced. jit's writers have the same (writer.py).
constexpr size_t kPlainRank = 6;
constexpr size_t kPlainKept = 4;

enum class OperatorKernelKind : uint8_t { kPointwise, kReduction, kRaw };

// How one fresh result lies in memory.
struct ResultShape {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  at::ScalarType dtype;
};

// A call on its way to the driver.
struct OperatorLaunch {
  const Variant* variant = nullptr;
  runtime::LaunchBlock block;
  Grid grid;
  bool empty = false;   // nothing to compute: not launched
  bool dense = false;   // the variant's dense entry runs
  bool fixed = false;   // results have their sizes already, and nothing may resize them
  int32_t random = -1;  // of the block's arguments the one that put_random fills; -1 for none
  c10::DeviceIndex device = 0;
  c10::SmallVector<at::Tensor, 2> results;
  std::vector<at::Tensor> held;  // copies that it reads: given back when it was launched

  const LastingKernel& entry() const {
    const LastingKernel& usual = *variant;
    return dense ? *variant->dense : usual;
  }
  // Whether its variant's list entry takes it.
  bool can_be_listed() const {
    return variant->list != nullptr && random < 0 && (dense || variant->kernel->values == nullptr);
  }
};

// The kernel of one overload.
struct OperatorKernel final : KernelRecord {
  // `random`: it draws though the operator takes no generator.
  OperatorKernel(c10::OperatorHandle op, OperatorKernelKind kind, const std::vector<int>& strided,
                 bool random);

  bool runs_on(c10::DeviceType device) const override;
  bool takes_layout(size_t argument, const at::Tensor& tensor) const override;
  std::optional<PackedCall> pack(c10::ArrayRef<c10::IValue> inputs,
                                 c10::ArrayRef<at::Tensor> outputs) const override;
  runtime::LaunchBlock pack_again(c10::ArrayRef<c10::IValue> inputs,
                                  c10::ArrayRef<at::Tensor> outputs,
                                  const PackedCall& captured) const override;
  void check_captured(c10::ArrayRef<c10::IValue> inputs, c10::ArrayRef<at::Tensor> outputs,
                      const PackedCall& captured) const override;
  // The same without what is in front of it.
  std::optional<PackedCall> pack_alone(c10::ArrayRef<c10::IValue> inputs,
                                       c10::ArrayRef<at::Tensor> outputs) const;
  // Whether it is passed as it lies in memory, however that is.
  bool takes_any_layout(size_t argument) const { return (any_layout >> argument & 1) != 0; }

  const OperatorKernelKind kind;
  int32_t out = -1;           // the first written argument, or -1: the results are fresh
  int32_t dim = -1;           // a reduction's: int, int[] or None
  int32_t keepdim = -1;       // a reduction's
  bool in_place;              // the written argument is an operand, too
  bool takes_views = false;   // kPointwise of kernel.h's form
  bool wraps_number = false;  // of a Scalar torch makes an operand: lt.Scalar
  uint64_t any_layout = 0;    // a bit for each argument
  int32_t generator = -1;     // an argument, or -1
  int32_t training = -1;      // likewise: it draws only where this one is not false
  bool draws;                 // gets seed and offset, in the generator's place or behind all others
  // Of an operator that writes lists of tensors and gives nothing (torch.optim's fused steps), and
  // of cat, how many a call takes: with more it is made in parts. 0: of another one.
  size_t most_listed = 0;
  bool writes_lists() const { return most_listed > 0 && out >= 0; }
  // A host entry that has the calls which it takes, and lives as long; null: none.
  std::atomic<OperatorKernel*> front{nullptr};
  bool is_front = false;
  FallbackRecord& record;  // counts

  mutable std::mutex mutex;  // of what follows
  mutable std::vector<std::string> strings;
  mutable std::map<std::vector<int64_t>, std::vector<ResultShape>> shapes;
  mutable std::set<std::vector<int64_t>> numbers;  // that the CPU takes
};

// Makes a call with longer lists than the kernel takes by calling the operator with parts of them.
// False, and nothing is done, for another one.
bool call_in_parts(const OperatorKernel& kernel, const c10::OperatorHandle& op, c10::Stack* stack);
// Whether it would.
bool is_made_in_parts(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

// Whether a call that torch's Meta kernel refuses falls back, so that the CPU refuses it in its own
// way, or answers: another library's operators keep what their own Meta kernel says.
bool leaves_to_cpu(const OperatorKernel& kernel);

// The key of a call's variant, and its bits. A string that is new is made known.
runtime::Key128 variant_key(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                            c10::DeviceIndex device);
int key_bits(const OperatorKernel& kernel);

// The arguments of a call for the kernel's `compile`, in Python. With the GIL.
nanobind::list values_for_python(const OperatorKernel& kernel,
                                 c10::ArrayRef<c10::IValue> arguments);

// The launch for a call, its results allocated or resized; none where the kernel does not take it.
// The steps of a call in their order: the variant, made now if it is the first with its key; then,
// by kind, contract, layouts, results and the block.
std::optional<OperatorLaunch> prepare_launch(const OperatorKernel& kernel,
                                             c10::ArrayRef<c10::IValue> arguments);

// One for each kind. False where the kernel does not take the call: there are too many dimensions
// for plain values, or a result may lie on top of an operand, and the CPU's kernel knows what is to
// come of that.
bool prepare_pointwise(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                       c10::ArrayRef<at::Tensor> results, OperatorLaunch& launch);
bool prepare_reduction(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                       c10::ArrayRef<at::Tensor> results, OperatorLaunch& launch);
bool prepare_raw(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                 c10::ArrayRef<at::Tensor> results, OperatorLaunch& launch);

// Appends what is no tensor of the device: numbers, 0-dimensional tensors of the host, lists, None.
void add_value(runtime::LaunchBlock& block, const c10::IValue& value, ArgumentKind kind);
// Appends a Scalar for a kernel that cannot tell the bits of a double from those of an integer.
void add_scalar_as(runtime::LaunchBlock& block, const c10::Scalar& scalar, bool is_floating);
// Raises torch's error for a number that the type computed in does not hold.
void check_in_range(const c10::Scalar& scalar, at::ScalarType computed);
// A tensor that stands for a number: 0-dimensional, on the host.
bool is_host_number(const c10::IValue& value);
runtime::TensorDesc describe(const at::Tensor& tensor, c10::IntArrayRef sizes,
                             c10::IntArrayRef strides);

// Raises for a given result that would have to be resized.
void check_fits(const OperatorKernel& kernel, const at::Tensor& result, c10::IntArrayRef sizes);

// Puts a kernel into the dispatcher, before the kit's fallback. Raises where another library has
// one.
OperatorKernel& register_operator_kernel(std::unique_ptr<OperatorKernel> kernel);
// Puts one in front of `behind`, which has what it does not take, in the place of a former one.
OperatorKernel& put_in_front(OperatorKernel& behind, std::unique_ptr<OperatorKernel> kernel);
// Takes it out again; the fallback is there as before. Nothing if it was taken out already.
void remove_operator_kernel(OperatorKernel& kernel);
// Whether an overload of the operator, in-place forms included, has an enabled kernel; whether any
// operator has.
bool has_native_form(const std::string& name);
bool has_native_kernels();

}  // namespace bringup::torch_ext
