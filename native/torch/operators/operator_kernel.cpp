#include "torch/operators/operator_kernel.h"

#include <ATen/core/stack.h>
#include <c10/core/DeviceGuard.h>
#include <nanobind/nanobind.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>

#include <array>
#include <string_view>
#include <utility>

#include "torch/common/errors.h"
#include "torch/common/values.h"
#include "torch/common/written_arguments.h"
#include "torch/devices/driver.h"
#include "torch/devices/fallback.h"
#include "torch/devices/host_random.h"
#include "torch/devices/state.h"
#include "torch/operators/lists.h"
#include "torch/operators/random_call.h"
#include "torch/ops/frame.h"

namespace nb = nanobind;

// Of torch/csrc/jit/python/pybind_utils.h, which brings half of torch with it.
namespace torch::jit {
pybind11::object toPyObject(c10::IValue value);
}

namespace bringup::torch_ext {
namespace {

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
    if (!kernel.arguments[i].is_operand() || !arguments[i].isTensor()) continue;
    const at::Tensor& tensor = arguments[i].toTensor();
    if (tensor.defined() && tensor.numel() == 0) return true;
  }
  return false;
}

// The results; none for a call that the kernel does not take.
std::optional<c10::SmallVector<at::Tensor, 2>> results_of(const OperatorKernel& kernel,
                                                          c10::ArrayRef<c10::IValue> arguments) {
  auto launch = prepare_launch(kernel, arguments);
  if (!launch) return std::nullopt;
  if (kernel.draws) {
    const RandomPoint point = take_random(kernel, arguments, launch->device);
    if (!launch->empty) put_random(launch->block.args(), launch->random, point);
  }
  kernel.record.native_calls.fetch_add(1, std::memory_order_relaxed);
  ListScope* const list = ListScope::current();
  if (!launch->empty && (list == nullptr || !list->take(*launch, arguments))) {
    launch_kernel(launch->entry(), std::move(launch->block), launch->grid, launch->device);
  }
  return std::move(launch->results);
}

void run_operator(const OperatorKernel& kernel, const c10::OperatorHandle& op,
                  c10::DispatchKeySet keys, c10::Stack* stack) {
  if (call_in_parts(kernel, op, stack)) return;
  const size_t count = kernel.arguments.size();
  auto results = results_of(kernel, torch::jit::last(*stack, count));
  if (!results) return fall_back(op, keys, stack);
  torch::jit::drop(*stack, count);
  for (at::Tensor& result : *results) stack->emplace_back(std::move(result));
}

// Arguments whose caller keeps them: counting a reference takes the GIL where Python has the
// tensor.
template <class... Args>
class Borrowed {
 public:
  explicit Borrowed(const Args&... args) : values_{value_of(args)...} {}
  ~Borrowed() {
    for (c10::IValue& value : values_) {
      if (!value.isTensor()) continue;
      at::Tensor tensor = std::move(value).toTensor();
      c10::MaybeOwnedTraits<at::Tensor>::destroyBorrow(tensor);
    }
  }
  Borrowed& operator=(Borrowed&&) = delete;

  c10::ArrayRef<c10::IValue> values() const { return values_; }

 private:
  static c10::IValue value_of(const at::Tensor& tensor) {
    return c10::MaybeOwnedTraits<at::Tensor>::createBorrow(tensor);
  }
  static c10::IValue value_of(const at::Scalar& number) { return number; }

  std::array<c10::IValue, sizeof...(Args)> values_;
};

// A functional form with one result.
template <class... Args>
class UnboxedOperator final : public c10::OperatorKernel {
 public:
  explicit UnboxedOperator(const torch_ext::OperatorKernel& kernel) : kernel_(kernel) {}
  at::Tensor operator()(c10::DispatchKeySet keys, const Args&... args) {
    {
      const Borrowed<Args...> borrowed(args...);
      auto results = results_of(kernel_, borrowed.values());
      if (results) return std::move(results->front());
    }
    c10::Stack stack{args...};
    fall_back(kernel_.handle, keys, &stack);
    return std::move(stack.front()).toTensor();
  }

 private:
  const torch_ext::OperatorKernel& kernel_;
};

class BoxedOperator final : public c10::OperatorKernel {
 public:
  explicit BoxedOperator(const torch_ext::OperatorKernel& kernel) : kernel_(kernel) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
    run_operator(kernel_, op, keys, stack);
  }

 private:
  const torch_ext::OperatorKernel& kernel_;
};

}  // namespace

OperatorKernel::OperatorKernel(c10::OperatorHandle op, OperatorKernelKind kind,
                               const std::vector<int>& strided, bool random)
    : KernelRecord(op), kind(kind), record(fallback_record(op.operator_name())) {
  const c10::FunctionSchema& schema = op.schema();
  const bool of_number = schema.overload_name().starts_with("Scalar");
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Argument& argument = arguments[i];
    const auto index = static_cast<int32_t>(i);
    if (argument.mutated && out < 0) out = index;
    if (argument.name == "training" || argument.name == "train") training = index;
    if (argument.kind == ArgumentKind::kNumber && of_number &&
        (argument.name == "other" || argument.name == "self")) {
      wraps_number = true;
    }
    if (kind == OperatorKernelKind::kReduction) {
      if (argument.name == "dim" || argument.name == "dims") dim = index;
      if (argument.name == "keepdim") keepdim = index;
    }
    if (kind != OperatorKernelKind::kRaw || may_write(schema, schema.arguments()[i])) {
      any_layout |= uint64_t{1} << i;
    }
  }
  for (const int argument : strided) any_layout |= uint64_t{1} << argument;
  in_place = out >= 0 && !arguments[static_cast<size_t>(out)].is_out;
  generator = RandomTraits(op).generator();
  draws = random || generator >= 0;
  const int bits = key_bits(*this);
  TORCH_CHECK(bits <= runtime::KeyPacker::kBits, name, ": its arguments need ", bits,
              " bits to choose a binary, of ", runtime::KeyPacker::kBits);
}

bool OperatorKernel::runs_on(c10::DeviceType device) const { return device == kDriverDevice; }

bool OperatorKernel::takes_layout(size_t argument, const at::Tensor& tensor) const {
  return takes_any_layout(argument) || tensor.is_contiguous() || !tensor.is_privateuseone();
}

bool leaves_to_cpu(const OperatorKernel& kernel) {
  return kernel.record.action.load(std::memory_order_relaxed) != FallbackAction::kForbid &&
         kernel.handle.operator_name().name.starts_with("aten::") &&
         kernel.handle.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
}

nb::list values_for_python(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments) {
  nb::list values;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    if (kernel.arguments[i].kind == ArgumentKind::kDtype && value.isInt()) {
      values.append(nb::borrow(reinterpret_cast<PyObject*>(
          torch::getTHPDtype(static_cast<at::ScalarType>(value.toInt())))));
    } else {
      values.append(nb::steal(torch::jit::toPyObject(value).release().ptr()));
    }
  }
  return values;
}

namespace {

// Asks Python for the variant, which also sees sizes. Null for a call that torch refuses and the
// CPU is to answer; raises torch's error where that may not be.
std::unique_ptr<Variant> ask(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments) {
  const nb::gil_scoped_acquire gil;
  const nb::list values = values_for_python(kernel, arguments);
  const nb::object answer = nb::steal(PyObject_CallOneArg(kernel.compile, values.ptr()));
  if (!answer.is_valid()) raise_current_python_error();
  if (PyExceptionInstance_Check(answer.ptr())) {
    if (leaves_to_cpu(kernel)) return nullptr;
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(answer.ptr())), answer.ptr());
    raise_current_python_error();
  }
  auto variant = std::make_unique<Variant>();
  variant->name = kernel.name.c_str();
  variant->flags = BRINGUP_LAUNCH_WAITS_FOR_NOTHING;
  if (answer.is_none()) return variant;
  const nb::object dtypes = answer[0];
  for (const nb::handle dtype : dtypes) {
    variant->results.push_back(reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type);
  }
  variant->kernel = runtime::KernelTable::instance().get(nb::cast<runtime::KernelId>(answer[1]));
  const nb::object computed = answer[2];
  variant->computed = reinterpret_cast<THPDtype*>(computed.ptr())->scalar_type;
  if (const auto dense = nb::cast<runtime::KernelId>(answer[3]); dense != 0) {
    variant->dense = std::make_unique<LastingKernel>();
    variant->dense->kernel = runtime::KernelTable::instance().get(dense);
    variant->dense->name = variant->name;
    variant->dense->flags = variant->flags;
  }
  if (const auto list = nb::cast<runtime::KernelId>(answer[4]); list != 0) {
    variant->list = std::make_unique<ListEntry>();
    variant->list->kernel = runtime::KernelTable::instance().get(list);
    variant->list->name = variant->name;
    variant->list->flags = variant->flags;
    variant->list->calls = nb::cast<int32_t>(answer[5]);
  }
  return variant;
}

// Needs no GIL. Null as above.
const Variant* variant_for(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                           c10::DeviceIndex device) {
  const runtime::Key128 key = variant_key(kernel, arguments, device);
  if (const Variant* found = find_variant(key); C10_LIKELY(found != nullptr)) {
    const bool asks = has_empty_operand(kernel, arguments);
    return C10_UNLIKELY(asks) && ask(kernel, arguments) == nullptr ? nullptr : found;
  }
  auto made = ask(kernel, arguments);
  return made == nullptr ? nullptr : &publish_variant(kernel, key, std::move(made));
}

std::optional<OperatorLaunch> prepare(const OperatorKernel& kernel,
                                      c10::ArrayRef<c10::IValue> arguments,
                                      c10::ArrayRef<at::Tensor> results, bool fixed) {
  if (!fixed && !kernel.enabled.load(std::memory_order_relaxed)) return std::nullopt;
  std::vector<c10::IValue> others;
  if (kernel.generator >= 0 && !arguments[static_cast<size_t>(kernel.generator)].isNone()) {
    others = without_generator(kernel, arguments);
    arguments = others;
  }
  const c10::DeviceIndex device = device_of(arguments);
  const Variant* variant = variant_for(kernel, arguments, device);
  if (variant == nullptr || variant->kernel == nullptr) return std::nullopt;
  if (kernel.draws && !takes_numbers(kernel, arguments)) return std::nullopt;
  std::optional<OperatorLaunch> launch(std::in_place);
  launch->variant = variant;
  launch->fixed = fixed;
  launch->device = device;
  const c10::OptionalDeviceGuard guard(
      launch->device == current_device()
          ? std::nullopt
          : std::optional(c10::Device(kDriverDevice, launch->device)));
  switch (kernel.kind) {
    case OperatorKernelKind::kPointwise:
      if (!prepare_pointwise(kernel, arguments, results, *launch)) return std::nullopt;
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
  const OperatorKernel* front = kernel.front.load(std::memory_order_acquire);
  if (front != nullptr && kernel.enabled.load(std::memory_order_relaxed)) {
    if (auto launch = prepare(*front, arguments, {}, false)) return launch;
  }
  return prepare(kernel, arguments, {}, false);
}

std::optional<PackedCall> OperatorKernel::pack(c10::ArrayRef<c10::IValue> inputs,
                                               c10::ArrayRef<at::Tensor> outputs) const {
  const OperatorKernel* first = front.load(std::memory_order_acquire);
  if (first != nullptr && first->enabled.load(std::memory_order_relaxed)) {
    if (auto call = first->pack_alone(inputs, outputs)) return call;
  }
  return pack_alone(inputs, outputs);
}

// A tensor of the host may hold another number at a replay, which a launch block does not read.
std::optional<PackedCall> OperatorKernel::pack_alone(c10::ArrayRef<c10::IValue> inputs,
                                                     c10::ArrayRef<at::Tensor> outputs) const {
  for (const c10::IValue& value : inputs) {
    if (!is_host_number(value)) continue;
    if (!value.toTensor().unsafeGetTensorImpl()->is_wrapped_number()) return std::nullopt;
  }
  auto launch = prepare(*this, inputs, outputs, true);
  if (!launch || launch->empty || !launch->held.empty()) return std::nullopt;
  return PackedCall{launch->entry().kernel, std::move(launch->block), launch->grid, launch->random,
                    launch->can_be_listed() ? launch->variant : nullptr};
}

void OperatorKernel::check_captured(c10::ArrayRef<c10::IValue> inputs,
                                    c10::ArrayRef<at::Tensor> outputs,
                                    const PackedCall& captured) const {
  pack_again(inputs, outputs, captured);
}

runtime::LaunchBlock OperatorKernel::pack_again(c10::ArrayRef<c10::IValue> inputs,
                                                c10::ArrayRef<at::Tensor> outputs,
                                                const PackedCall& captured) const {
  for (const OperatorKernel* one : {static_cast<const OperatorKernel*>(front.load()), this}) {
    if (one == nullptr) continue;
    auto call = one->pack_alone(inputs, outputs);
    if (call && call->kernel == captured.kernel && call->grid == captured.grid) {
      return std::move(call->block);
    }
  }
  raise_error(ErrorClass::kContract, name,
              ": it would not run the same binary as in the captured graph: a dtype, a layout, "
              "a string or the size of the work has changed; capture it again");
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

void add_value(runtime::LaunchBlock& block, const c10::IValue& value, ArgumentKind kind) {
  if (value.isNone() || (value.isTensor() && !value.toTensor().defined())) return block.add_none();
  if (is_host_number(value)) return add_scalar(block, value.toTensor().item());
  if (value.isString()) return block.add_string(value.toStringRef());
  if (kind == ArgumentKind::kNumber) return add_scalar(block, value.toScalar());
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

namespace {

template <class... Args>
bool takes(const OperatorKernel& kernel) {
  constexpr std::array kinds = {std::is_same_v<Args, at::Tensor> ? ArgumentKind::kTensor
                                                                 : ArgumentKind::kNumber...};
  const c10::FunctionSchema& schema = kernel.handle.schema();
  return !schema.is_mutable() && schema.returns().size() == 1 &&
         std::ranges::equal(kernel.arguments, kinds, [](const Argument& argument, auto kind) {
           return argument.kind == kind && !argument.optional;
         });
}

// Typed for the usual schemas: boxing is a tenth of a short call.
c10::KernelFunction function_of(const OperatorKernel& kernel) {
  using at::Scalar, at::Tensor;
  const auto unboxed = [&]<class... Args>() {
    return c10::KernelFunction::makeFromUnboxedFunctor<false, UnboxedOperator<Args...>>(
        std::make_unique<UnboxedOperator<Args...>>(kernel));
  };
  if (takes<Tensor>(kernel)) return unboxed.operator()<Tensor>();
  if (takes<Tensor, Tensor>(kernel)) return unboxed.operator()<Tensor, Tensor>();
  if (takes<Tensor, Scalar>(kernel)) return unboxed.operator()<Tensor, Scalar>();
  if (takes<Tensor, Tensor, Scalar>(kernel)) return unboxed.operator()<Tensor, Tensor, Scalar>();
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<BoxedOperator>(kernel));
}

}  // namespace

OperatorKernel& register_operator_kernel(std::unique_ptr<OperatorKernel> made) {
  register_list_operators();
  OperatorKernel& kernel = *made;
  const c10::OperatorName& op = kernel.handle.operator_name();
  // Where another library has a kernel the fallback stays withdrawn: put back it would win over it.
  withdraw_fallback(op);
  TORCH_CHECK(!kernel.handle.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1), kernel.name,
              " has a kernel for the device already, which another library registered "
              "(TORCH_LIBRARY_IMPL or torch.library): take that one out first");
  kernel.registrations.push_back(c10::Dispatcher::singleton().registerImpl(
      op, c10::DispatchKey::PrivateUse1, function_of(kernel), std::nullopt, nullptr,
      std::string("registered at ") + __FILE__ + ":" + std::to_string(__LINE__) +
          " by devices.kernel"));
  publish(std::move(made));
  return kernel;
}

OperatorKernel& put_in_front(OperatorKernel& behind, std::unique_ptr<OperatorKernel> kernel) {
  kernel->is_front = true;
  OperatorKernel& made = *kernel.release();  // calls and graphs refer to it
  behind.front.store(&made, std::memory_order_release);
  return made;
}

void remove_operator_kernel(OperatorKernel& kernel) {
  if (kernel.is_front) return kernel.enabled.store(false);
  if (close(kernel)) restore_fallback(kernel.handle.operator_name());
}

bool has_native_form(const std::string& name) {
  // Views: attention asks at every call.
  const auto base_of = [](std::string_view full) {
    return full.ends_with('_') ? full.substr(0, full.size() - 1) : full;
  };
  const std::string_view base = base_of(name);
  return any_kernel([&](const KernelRecord& record) {
    return dynamic_cast<const OperatorKernel*>(&record) != nullptr &&
           base_of(record.handle.operator_name().name) == base;
  });
}

bool has_native_kernels() {
  return any_kernel([](const KernelRecord& record) {
    return dynamic_cast<const OperatorKernel*>(&record) != nullptr;
  });
}

}  // namespace bringup::torch_ext
