#include "torch/operators/operator_kernel.h"

#include <ATen/core/stack.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/DeviceGuard.h>
#include <nanobind/nanobind.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "torch/common/errors.h"
#include "torch/common/values.h"
#include "torch/common/written_arguments.h"
#include "torch/devices/driver.h"
#include "torch/devices/fallback.h"
#include "torch/devices/state.h"
#include "torch/ops/frame.h"

namespace nb = nanobind;

// Of torch/csrc/jit/python/pybind_utils.h, which brings half of torch with it.
namespace torch::jit {
pybind11::object toPyObject(c10::IValue value);
}

namespace bringup::torch_ext {
namespace {

constexpr int kNumberBits = 20;
constexpr int kDtypeBits = 6;
constexpr int kTensorBits = 9;
constexpr int kScalarBits = 4;
constexpr int kStringBits = 5;
constexpr uint64_t kNoTensor = (1u << kTensorBits) - 1;
constexpr uint64_t kMixedTensors = kNoTensor - 1;  // no tensor has it: there is no such priority
constexpr uint64_t kNoScalar = (1u << kScalarBits) - 1;
constexpr uint64_t kNoDtype = (1u << kDtypeBits) - 1;
constexpr uint64_t kNoString = (1u << kStringBits) - 1;

int bits_of(ArgumentRole role) {
  switch (role) {
    case ArgumentRole::kTensor:
    case ArgumentRole::kTensorList:
    case ArgumentRole::kOut:
      return kTensorBits;
    case ArgumentRole::kScalar:
      return kScalarBits;
    case ArgumentRole::kString:
      return kStringBits;
    case ArgumentRole::kDtype:
      return kDtypeBits;
    default:
      return 1;
  }
}

// What decides which dtype a result gets: a tensor's own, and of which priority it is.
uint64_t tensor_code(const at::Tensor& tensor) {
  if (!tensor.defined()) return kNoTensor;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const uint64_t priority = impl.is_wrapped_number() ? 2 : impl.dim() == 0 ? 1 : 0;
  return static_cast<uint64_t>(tensor.scalar_type()) | priority << kDtypeBits |
         static_cast<uint64_t>(tensor.is_cpu()) << (kDtypeBits + 2);
}

// Of a list's first tensor, unless another one has another dtype.
uint64_t list_code(c10::ArrayRef<c10::IValue> tensors) {
  if (tensors.empty()) return kNoTensor;
  const at::Tensor& first = tensors.front().toTensor();
  for (const c10::IValue& item : tensors) {
    const at::Tensor& tensor = item.toTensor();
    if (first.defined() && tensor.defined() && tensor.scalar_type() != first.scalar_type()) {
      return kMixedTensors;
    }
  }
  return tensor_code(first);
}

// Operators promote by a number's category, and refuse some that are negative.
uint64_t scalar_code(const c10::Scalar& scalar) {
  if (scalar.isComplex()) return 3;
  if (scalar.isBoolean()) return 2;
  if (scalar.isFloatingPoint()) return 1 | static_cast<uint64_t>(scalar.toDouble() < 0) << 2;
  return static_cast<uint64_t>(scalar.toLong() < 0) << 2;
}

uint64_t string_code(const OperatorKernel& kernel, const std::string& text) {
  const std::lock_guard lock(kernel.mutex);
  const auto found = std::find(kernel.strings.begin(), kernel.strings.end(), text);
  const auto number = static_cast<uint64_t>(found - kernel.strings.begin());
  if (found != kernel.strings.end()) return number;
  TORCH_CHECK(number < kNoString, kernel.name, ": it was called with more than ", kNoString,
              " different strings, the last is '", text, "'");
  kernel.strings.push_back(text);
  return number;
}

uint64_t code_of(const OperatorKernel& kernel, const c10::IValue& value, ArgumentRole role) {
  switch (role) {
    case ArgumentRole::kTensor:
    case ArgumentRole::kOut:
      return value.isTensor() ? tensor_code(value.toTensor()) : kNoTensor;
    case ArgumentRole::kTensorList:
      return value.isTensorList() ? list_code(value.toListRef()) : kNoTensor;
    case ArgumentRole::kScalar:
      return value.isScalar() ? scalar_code(value.toScalar()) : kNoScalar;
    case ArgumentRole::kString:
      return value.isString() ? string_code(kernel, value.toStringRef()) : kNoString;
    case ArgumentRole::kDtype:
      return value.isInt() ? static_cast<uint64_t>(value.toInt()) : kNoDtype;
    default:
      return value.isNone() ? 1 : 0;
  }
}

runtime::VariantTable& plans() {
  static auto* table = new runtime::VariantTable;
  return *table;
}

uint32_t next_number() {
  static std::atomic<uint32_t> next{0};
  const uint32_t number = next.fetch_add(1);
  TORCH_CHECK(number >> kNumberBits == 0, "this process has registered ", number,
              " kernels for operators, more than keys can number");
  return number;
}

int32_t written_argument(const c10::FunctionSchema& schema) {
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (writes(schema.arguments()[i])) return static_cast<int32_t>(i);
  }
  return -1;
}

// The device of a call: that of its first tensor there.
c10::DeviceIndex device_of(c10::ArrayRef<c10::IValue> arguments) {
  c10::DeviceIndex found = -1;
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    if (found < 0 && tensor.is_privateuseone()) found = tensor.device().index();
  });
  return found < 0 ? current_device() : found;
}

// Sizes can be refused where there are no elements: torch's own checks are asked each time.
bool has_empty_operand(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (kernel.roles[i] != ArgumentRole::kTensor || !arguments[i].isTensor()) continue;
    const at::Tensor& tensor = arguments[i].toTensor();
    if (tensor.defined() && tensor.numel() == 0) return true;
  }
  return false;
}

void run_operator(const OperatorKernel& kernel, const c10::OperatorHandle& op,
                  c10::DispatchKeySet keys, c10::Stack* stack) {
  const size_t count = kernel.roles.size();
  auto launch = prepare_launch(kernel, torch::jit::last(*stack, count));
  if (!launch) return fall_back(op, keys, stack);
  kernel.record.native_calls.fetch_add(1, std::memory_order_relaxed);
  if (!launch->empty) {
    launch_lasting(*launch->plan, std::move(launch->block), launch->grid, launch->device);
  }
  torch::jit::drop(*stack, count);
  for (at::Tensor& result : launch->results) stack->emplace_back(std::move(result));
}

class BoxedOperator final : public c10::OperatorKernel {
 public:
  explicit BoxedOperator(const torch_ext::OperatorKernel& kernel) : kernel_(kernel) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
    run_operator(kernel_, op, keys, stack);
  }

 private:
  const torch_ext::OperatorKernel& kernel_;
};

struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<OperatorKernel>> all;
  std::unordered_map<c10::OperatorName, OperatorKernel*> registered;
};

// Never destroyed: operators may be called until the very end of the process.
Registry& registry() {
  static auto* one = new Registry;
  return *one;
}

}  // namespace

OperatorKernel::OperatorKernel(c10::OperatorHandle op, OperatorKernelKind kind,
                               std::vector<ArgumentRole> roles)
    : handle(op),
      name(c10::toString(op.operator_name())),
      kind(kind),
      roles(std::move(roles)),
      out(written_argument(op.schema())),
      in_place(out >= 0 && !op.schema().arguments()[static_cast<size_t>(out)].is_out()),
      number(next_number()),
      record(fallback_record(op.operator_name())) {
  int bits = kNumberBits + kDtypeBits;
  for (const ArgumentRole role : this->roles) bits += bits_of(role);
  TORCH_CHECK(bits <= runtime::KeyPacker::kBits, name, ": its arguments need ", bits,
              " bits to choose a binary, of ", runtime::KeyPacker::kBits);
}

runtime::Key128 operator_key(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments) {
  runtime::KeyPacker packer;
  packer.put(kernel.number, kNumberBits);
  packer.put(static_cast<uint64_t>(c10::typeMetaToScalarType(c10::get_default_dtype())),
             kDtypeBits);
  for (size_t i = 0; i < kernel.roles.size(); ++i) {
    packer.put(code_of(kernel, arguments[i], kernel.roles[i]), bits_of(kernel.roles[i]));
  }
  return packer.key();
}

bool leaves_to_cpu(const OperatorKernel& kernel) {
  return kernel.record.action.load(std::memory_order_relaxed) != FallbackAction::kForbid &&
         kernel.handle.operator_name().name.starts_with("aten::") &&
         kernel.handle.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
}

std::unique_ptr<OperatorPlan> ask_for_plan(const OperatorKernel& kernel,
                                           c10::ArrayRef<c10::IValue> arguments) {
  const nb::gil_scoped_acquire gil;
  nb::list values;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    if (kernel.roles[i] == ArgumentRole::kDtype && value.isInt()) {
      values.append(nb::borrow(reinterpret_cast<PyObject*>(
          torch::getTHPDtype(static_cast<at::ScalarType>(value.toInt())))));
    } else {
      values.append(nb::steal(torch::jit::toPyObject(value).release().ptr()));
    }
  }
  const nb::object answer = nb::steal(PyObject_CallOneArg(kernel.plan, values.ptr()));
  if (!answer.is_valid()) raise_current_python_error();
  if (PyExceptionInstance_Check(answer.ptr())) {
    if (leaves_to_cpu(kernel)) return nullptr;
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(answer.ptr())), answer.ptr());
    raise_current_python_error();
  }
  auto plan = std::make_unique<OperatorPlan>();
  plan->name = kernel.name.c_str();
  if (answer.is_none()) return plan;
  const nb::object dtypes = answer[0];
  for (const nb::handle dtype : dtypes) {
    plan->results.push_back(reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type);
  }
  plan->kernel = runtime::KernelTable::instance().get(nb::cast<runtime::KernelId>(answer[1]));
  const nb::object computed = answer[2];
  plan->computed = reinterpret_cast<THPDtype*>(computed.ptr())->scalar_type;
  return plan;
}

const OperatorPlan* plan_for(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments) {
  const runtime::Key128 key = operator_key(kernel, arguments);
  const auto* found = static_cast<const OperatorPlan*>(plans().find(key));
  if (C10_LIKELY(found != nullptr)) {
    const bool asks = has_empty_operand(kernel, arguments);
    return C10_UNLIKELY(asks) && ask_for_plan(kernel, arguments) == nullptr ? nullptr : found;
  }
  auto made = ask_for_plan(kernel, arguments);
  if (made == nullptr) return nullptr;
  const void* present = plans().insert(key, made.get());
  if (present == made.get()) made.release();
  return static_cast<const OperatorPlan*>(present);
}

namespace {

std::optional<OperatorLaunch> prepare(const OperatorKernel& kernel,
                                      c10::ArrayRef<c10::IValue> arguments,
                                      c10::ArrayRef<at::Tensor> results, bool fixed) {
  if (!fixed && !kernel.enabled.load(std::memory_order_relaxed)) return std::nullopt;
  const OperatorPlan* plan = plan_for(kernel, arguments);
  if (plan == nullptr || plan->kernel == nullptr) return std::nullopt;
  std::optional<OperatorLaunch> launch(std::in_place);
  launch->plan = plan;
  launch->fixed = fixed;
  launch->device = device_of(arguments);
  const c10::OptionalDeviceGuard guard(
      launch->device == current_device()
          ? std::nullopt
          : std::optional(c10::Device(kDriverDevice, launch->device)));
  switch (kernel.kind) {
    case OperatorKernelKind::kPointwise:
      prepare_pointwise(kernel, arguments, results, *launch);
      break;
    case OperatorKernelKind::kReduction:
      if (!prepare_reduction(kernel, arguments, results, *launch)) return std::nullopt;
      break;
    case OperatorKernelKind::kRaw:
      if (!prepare_raw(kernel, arguments, results, *launch)) return std::nullopt;
      break;
  }
  return launch;
}

}  // namespace

std::optional<OperatorLaunch> prepare_launch(const OperatorKernel& kernel,
                                             c10::ArrayRef<c10::IValue> arguments) {
  return prepare(kernel, arguments, {}, false);
}

std::optional<OperatorLaunch> prepare_launch_into(const OperatorKernel& kernel,
                                                  c10::ArrayRef<c10::IValue> arguments,
                                                  c10::ArrayRef<at::Tensor> results) {
  return prepare(kernel, arguments, results, true);
}

void check_fits(const OperatorKernel& kernel, const at::Tensor& result, c10::IntArrayRef sizes) {
  TORCH_CHECK(result.sizes() == sizes, kernel.name, ": its result would have shape ", sizes,
              ", and has ", result.sizes(), " in the captured graph");
}

bool is_host_number(const c10::IValue& value) {
  if (!value.isTensor()) return false;
  const at::Tensor& tensor = value.toTensor();
  return tensor.defined() && tensor.is_cpu() && tensor.dim() == 0;
}

namespace {

void add_scalar(runtime::LaunchBlock& block, const c10::Scalar& scalar) {
  if (scalar.isFloatingPoint()) {
    block.add_float(scalar.toDouble());
  } else {
    block.add_int(scalar.isBoolean() ? scalar.toBool() : scalar.toLong());
  }
}

}  // namespace

void add_scalar_as(runtime::LaunchBlock& block, const c10::Scalar& scalar, bool is_floating) {
  is_floating ? block.add_float(scalar.toDouble()) : block.add_int(scalar.toLong());
}

namespace {

void add_list(runtime::LaunchBlock& block, const c10::IValue& value) {
  if (value.isDoubleList()) {
    const auto numbers = value.toDoubleVector();
    return block.add_float_list(numbers);
  }
  std::vector<int64_t> numbers;
  for (const c10::IValue& item : value.toListRef()) {
    numbers.push_back(item.isBool() ? item.toBool() : item.toInt());
  }
  block.add_int_list(numbers);
}

}  // namespace

void add_value(runtime::LaunchBlock& block, const c10::IValue& value, ArgumentRole role) {
  if (value.isNone() || (value.isTensor() && !value.toTensor().defined())) return block.add_none();
  if (is_host_number(value)) return add_scalar(block, value.toTensor().item());
  if (value.isString()) return block.add_string(value.toStringRef());
  if (role == ArgumentRole::kScalar) return add_scalar(block, value.toScalar());
  if (value.isDouble()) return block.add_float(value.toDouble());
  if (value.isBool()) return block.add_int(value.toBool());
  if (value.isInt()) return block.add_int(value.toInt());
  TORCH_INTERNAL_ASSERT(value.isList());
  add_list(block, value);
}

void check_in_range(const c10::Scalar& scalar, at::ScalarType computed) {
  switch (computed) {
#define BRINGUP_CONVERT(type, name) \
  case at::ScalarType::name:        \
    (void)scalar.to<type>();        \
    return;
    AT_FORALL_SCALAR_TYPES(BRINGUP_CONVERT)
#undef BRINGUP_CONVERT
    case at::ScalarType::Half:
    case at::ScalarType::BFloat16:
      (void)scalar.to<float>();
      return;
    default:
      return;
  }
}

runtime::TensorDesc describe(const at::Tensor& tensor, c10::IntArrayRef sizes,
                             c10::IntArrayRef strides) {
  runtime::TensorDesc desc;
  desc.data = const_cast<void*>(tensor.const_data_ptr());
  desc.device = dlpack_device(tensor.device());
  desc.dtype = dlpack_dtype(tensor.scalar_type());
  desc.sizes = {sizes.data(), sizes.size()};
  desc.strides = {strides.data(), strides.size()};
  return desc;
}

OperatorKernel& register_operator_kernel(std::unique_ptr<OperatorKernel> made) {
  Registry& all = registry();
  OperatorKernel* kernel = nullptr;
  {
    const std::lock_guard lock(all.mutex);
    kernel = all.all.emplace_back(std::move(made)).get();
  }
  const c10::OperatorName& op = kernel->handle.operator_name();
  // Where somebody else has a kernel the fallback stays withdrawn: put back it would win over it.
  withdraw_fallback(op);
  TORCH_CHECK(!kernel->handle.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1), kernel->name,
              " has a kernel for the device already, which somebody else registered "
              "(TORCH_LIBRARY_IMPL or torch.library): take that one out first");
  kernel->registration.emplace(c10::Dispatcher::singleton().registerImpl(
      op, c10::DispatchKey::PrivateUse1,
      c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<BoxedOperator>(*kernel)),
      std::nullopt, nullptr,
      std::string("registered at ") + __FILE__ + ":" + std::to_string(__LINE__) +
          " by devices.kernel"));
  const std::lock_guard lock(all.mutex);
  all.registered[op] = kernel;
  return *kernel;
}

void remove_operator_kernel(OperatorKernel& kernel) {
  kernel.enabled.store(false);
  Registry& all = registry();
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.registered.find(kernel.handle.operator_name());
    if (found == all.registered.end() || found->second != &kernel) return;
    all.registered.erase(found);
  }
  kernel.registration.reset();
  restore_fallback(kernel.handle.operator_name());
}

bool has_native_form(const std::string& name) {
  const auto base = [](const std::string& full) {
    return full.ends_with('_') ? full.substr(0, full.size() - 1) : full;
  };
  // A loop over an operator that may have another name: _foreach_norm is linalg_vector_norm's.
  const bool any_form = name.starts_with("aten::_foreach_");
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  return std::any_of(all.registered.begin(), all.registered.end(), [&](const auto& entry) {
    return (any_form || base(entry.first.name) == base(name)) && entry.second->enabled.load();
  });
}

const OperatorKernel* find_operator_kernel(const c10::OperatorHandle& op) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.registered.find(op.operator_name());
  if (found == all.registered.end() || !found->second->enabled.load()) return nullptr;
  return found->second;
}

}  // namespace bringup::torch_ext
