// Kernels for operators that exist: what devices.kernel registered for one overload, which binary
// runs for a call, and how a call becomes a launch.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/kernel_table.h"
#include "runtime/launch_block.h"
#include "runtime/variant_table.h"
#include "torch/devices/driver.h"
#include "torch/devices/fallback_policy.h"

namespace bringup::torch_ext {

constexpr int64_t kBlockElements = int64_t{1} << 16;  // that a block of a grid is worth
constexpr int64_t kMostBlocks = 64;

enum class OperatorKernelKind : uint8_t { kPointwise, kReduction, kRaw };

// What an argument of the overload is for its kernel.
enum class ArgumentRole : uint8_t {
  kTensor,      // an operand, also where it is None
  kScalar,      // Scalar
  kNumber,      // int, float, bool
  kString,      // chooses the binary
  kDtype,       // chooses the binary
  kList,        // int[], float[], bool[]
  kTensorList,  // Tensor[]
  kDim,         // a reduction's: int, int[] or None
  kKeepDim,     // a reduction's
  kOut,         // written, and no operand
};

// How one fresh result lies in memory.
struct ResultShape {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  at::ScalarType dtype;
};

// What was found out about calls with one key: published once and never freed.
struct OperatorPlan : LastingKernel {  // no kernel: such calls fall back
  c10::SmallVector<at::ScalarType, 2> results;
  at::ScalarType computed = at::ScalarType::Undefined;  // which chose the binary
};

// A call on its way to the driver.
struct OperatorLaunch {
  const OperatorPlan* plan = nullptr;
  runtime::LaunchBlock block;
  int64_t grid = 1;
  bool empty = false;  // nothing to compute: not launched
  bool fixed = false;  // results have their sizes already, and nothing may resize them
  c10::DeviceIndex device = 0;
  c10::SmallVector<at::Tensor, 2> results;
  std::vector<at::Tensor> held;  // copies that it reads: given back when it was launched
};

// The kernel of one overload. Lives for ever: calls and graphs refer to it.
struct OperatorKernel {
  OperatorKernel(c10::OperatorHandle op, OperatorKernelKind kind, std::vector<ArgumentRole> roles);
  OperatorKernel(const OperatorKernel&) = delete;
  OperatorKernel& operator=(const OperatorKernel&) = delete;

  const c10::OperatorHandle handle;
  const std::string name;  // "aten::add.Tensor"; plans refer to it
  const OperatorKernelKind kind;
  const std::vector<ArgumentRole> roles;
  const int32_t out;         // the written argument, or -1: the results are fresh
  const bool in_place;       // the written argument is an operand, too
  const uint32_t number;     // in keys; never given twice
  FallbackRecord& record;    // counts
  uint64_t strided = 0;      // kRaw: a bit for each argument that is taken in any layout
  bool takes_views = false;  // kPointwise of kernel.h's form
  PyObject* plan = nullptr;  // owned: (arguments) -> (result dtypes, kernel id), or None
  std::atomic<bool> enabled{true};
  std::optional<c10::RegistrationHandleRAII> registration;

  mutable std::mutex mutex;  // of what follows
  mutable std::vector<std::string> strings;
  mutable std::map<std::vector<int64_t>, std::vector<ResultShape>> shapes;
};

// The key of a call; one that holds a string which is new makes it known.
runtime::Key128 operator_key(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments);

// The plan for a call, made now if it is the first with its key. Needs no GIL. Null for a call that
// torch refuses and the CPU is to answer; raises torch's error where that may not be.
const OperatorPlan* plan_for(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments);

// The same from Python, which also sees sizes.
std::unique_ptr<OperatorPlan> ask_for_plan(const OperatorKernel& kernel,
                                           c10::ArrayRef<c10::IValue> arguments);

// Whether a call that torch's Meta kernel refuses falls back, so that the CPU refuses it in its own
// way, or answers: another library's operators keep what their own Meta kernel says.
bool leaves_to_cpu(const OperatorKernel& kernel);

// The launch for a call, its results allocated or resized; none where the kernel does not take it.
std::optional<OperatorLaunch> prepare_launch(const OperatorKernel& kernel,
                                             c10::ArrayRef<c10::IValue> arguments);
// The same into these results, or into those among the arguments, which have to fit.
std::optional<OperatorLaunch> prepare_launch_into(const OperatorKernel& kernel,
                                                  c10::ArrayRef<c10::IValue> arguments,
                                                  c10::ArrayRef<at::Tensor> results);

// One for each kind.
void prepare_pointwise(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                       c10::ArrayRef<at::Tensor> results, OperatorLaunch& launch);
// False where a result may lie on top of an operand: what is to come of that the CPU's kernel
// knows.
bool prepare_reduction(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                       c10::ArrayRef<at::Tensor> results, OperatorLaunch& launch);
bool prepare_raw(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                 c10::ArrayRef<at::Tensor> results, OperatorLaunch& launch);

// Appends what is no tensor of the device: numbers, 0-dimensional tensors of the host, lists, None.
void add_value(runtime::LaunchBlock& block, const c10::IValue& value, ArgumentRole role);
// Appends a Scalar for a kernel that cannot tell the bits of a double from those of an integer.
void add_scalar_as(runtime::LaunchBlock& block, const c10::Scalar& scalar, bool is_floating);
// Raises torch's error for a number that the type computed in does not hold.
void check_in_range(const c10::Scalar& scalar, at::ScalarType computed);
// A tensor that stands for a number: 0-dimensional, on the host.
bool is_host_number(const c10::IValue& value);
runtime::TensorDesc describe(const at::Tensor& tensor, c10::IntArrayRef sizes,
                             c10::IntArrayRef strides);

// Whether a raw kernel takes argument number `i` in any layout, so that it is not copied.
bool takes_any_layout(const OperatorKernel& kernel, size_t i);
// Raises for a given result that would have to be resized.
void check_fits(const OperatorKernel& kernel, const at::Tensor& result, c10::IntArrayRef sizes);

// Puts a kernel into the dispatcher, before the kit's fallback. Raises where somebody else has one.
OperatorKernel& register_operator_kernel(std::unique_ptr<OperatorKernel> kernel);
// Takes it out again; the fallback is there as before. Nothing if it was taken out already.
void remove_operator_kernel(OperatorKernel& kernel);
// Whether an overload of the operator, in-place forms included, has an enabled kernel.
bool has_native_form(const std::string& name);
// The enabled kernel of an operator, or null.
const OperatorKernel* find_operator_kernel(const c10::OperatorHandle& op);

}  // namespace bringup::torch_ext
