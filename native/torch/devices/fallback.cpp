// The fallback: an operator without a kernel of its own runs the CPU kernel. With host-visible
// memory on zero-copy aliases, else on copies.
#include "torch/devices/fallback.h"

#include <ATen/ops/add_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/util/forever.h"
#include "torch/common/out_form.h"
#include "torch/common/torch_private.h"
#include "torch/common/values.h"
#include "torch/common/written_arguments.h"
#include "torch/devices/fallback_policy.h"
#include "torch/devices/host_call.h"
#include "torch/devices/host_random.h"
#include "torch/devices/registration.h"
#include "torch/devices/state.h"

namespace bringup::torch_ext {
namespace {

// When a call writes an argument. Running statistics stay as they are in evaluation.
enum class Writes : uint8_t { kNever, kAlways, kInTraining, kResult };

// What is known about an operator from its schema alone.
struct FallbackPlan {
  bool keeps_nothing = false;  // an aten operator; others may keep the tensors they are given
  bool mixes_devices = false;  // takes CPU tensors beside device tensors on purpose
  bool takes_dtype = false;
  int device = -1;                              // position of this argument, or -1
  std::optional<c10::OperatorHandle> out_form;  // of a structured operator
  bool out_form_may_fall_back = false;          // the fallback has an entry of its own for it
  RandomTraits random;
  std::vector<Writes> writes;  // for each argument
  FallbackRecord* record = nullptr;
};

bool mixes_devices_on_purpose(const std::string& name) {
  static const std::unordered_set<std::string> kNames = {
      "aten::index",         "aten::index_put",
      "aten::index_put_",    "aten::_index_put_impl_",
      "aten::_ctc_loss",     "aten::_ctc_loss_backward",
      "aten::_unsafe_index", "aten::_unsafe_index_put",
      "aten::tensor_split",  "aten::_pack_padded_sequence"};
  return kNames.count(name) != 0;
}

std::optional<c10::OperatorHandle> structured_out_form(const c10::OperatorHandle& op) {
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) {
    return std::nullopt;
  }
  return find_out_form(op);
}

// Part of what the dispatcher says of the kernels that this file registers for single operators.
constexpr const char* kRegisteredHere = "registered at " __FILE__;

// Whether the device's kernel of an operator that has one is an entry of the fallback.
bool is_fallback(const c10::OperatorHandle& op) {
  const auto kernel = op.getComputedKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
  return kernel.debug().starts_with(kRegisteredHere);
}

bool has_single_registration(const c10::OperatorName& op);

bool out_form_has_own_kernel(const FallbackPlan& plan) {
  const std::optional<c10::OperatorHandle>& op = plan.out_form;
  return op.has_value() && op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) &&
         !(plan.out_form_may_fall_back && is_fallback(*op));
}

FallbackPlan make_plan(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  FallbackPlan plan;
  plan.keeps_nothing = schema.name().starts_with("aten::");
  plan.mixes_devices = mixes_devices_on_purpose(schema.name());
  plan.random = RandomTraits(op);
  plan.out_form = structured_out_form(op);
  plan.out_form_may_fall_back =
      plan.out_form.has_value() && has_single_registration(plan.out_form->operator_name());
  plan.record = &fallback_record(op.operator_name());
  const auto device = c10::OptionalType::create(c10::DeviceObjType::get());
  const auto dtype = c10::OptionalType::create(c10::ScalarTypeType::get());
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::TypePtr& type = schema.arguments()[i].real_type();
    if (type->isSubtypeOf(*device)) plan.device = static_cast<int>(i);
    plan.takes_dtype |= type->isSubtypeOf(*dtype);
    const c10::Argument& argument = schema.arguments()[i];
    plan.writes.push_back(argument.is_out()                ? Writes::kResult
                          : is_statistic(schema, argument) ? Writes::kInTraining
                          : may_write(schema, argument)    ? Writes::kAlways
                                                           : Writes::kNever);
  }
  return plan;
}

// Plans are made once and kept for ever; each thread remembers where it found its last ones. Only
// aten's operators have plans that are kept: others may be defined anew.
const FallbackPlan& kept_plan(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  struct Entry {
    const c10::FunctionSchema* schema = nullptr;
    const FallbackPlan* plan = nullptr;
  };
  thread_local std::array<Entry, 256> recent;
  Entry& entry = recent[(reinterpret_cast<uintptr_t>(&schema) >> 6) % recent.size()];
  if (C10_LIKELY(entry.schema == &schema)) return *entry.plan;

  static std::mutex mutex;
  static auto* plans =
      new std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<FallbackPlan>>;
  std::lock_guard lock(mutex);
  auto& plan = (*plans)[&schema];
  if (plan == nullptr) plan = std::make_unique<FallbackPlan>(make_plan(op));
  entry = {&schema, plan.get()};
  return *plan;
}

// The device of a call: its tensors', or else the one that it asks for.
c10::Device device_of(const c10::OperatorHandle& op, const FallbackPlan& plan,
                      c10::ArrayRef<c10::IValue> arguments) {
  CommonDevice common;
  for_each_tensor(arguments,
                  [&](const at::Tensor& tensor) { common.see(tensor, plan.mixes_devices); });
  if (!common.known() && plan.device >= 0) {
    const c10::IValue& wanted = arguments[static_cast<size_t>(plan.device)];
    if (wanted.isDevice()) common.take(wanted.toDevice());
  }
  return common.get(op.operator_name());
}

// The call's random numbers: an offset of the generator that it was given, or of the device's own.
void give_generator(const RandomTraits& random, c10::IValue* arguments, c10::DeviceIndex device) {
  if (random.generator() < 0) return;
  const c10::IValue& given = arguments[random.generator()];
  DeviceDraws draws(
      random_state(given.isGenerator() ? given.toGenerator() : default_generator(device), device));
  random.give_generator(arguments, draws);
}

// torch's composite kernel of a structured operator: it checks the arguments, allocates the result
// and calls the out form. Reached through the table of a device that has no kernels at all.
constexpr c10::DispatchKeySet kComposites(c10::DispatchKey::PrivateUse3);
void run_composite(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.redispatchBoxed(kComposites, stack);
}

// Code in Python that takes the place of a kernel may keep what it is given, too.
HostCall::Mode mode_of(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                       const FallbackPlan& plan) {
  const bool keeps_nothing = plan.keeps_nothing && is_unboxed(op, keys);
  return keeps_nothing ? host_call_mode() : HostCall::Mode::kCopy;
}

// What the host returned becomes the device's, by `adopt`.
template <class Adopt>
void adopt_results(const FallbackPlan& plan, const HostCall& call, FallbackCall& counted,
                   Adopt adopt) {
  try {
    adopt();
    counted.copied(call.bytes_to_host(), call.bytes_to_device());
  } catch (const c10::TypeError& error) {
    // Python's operators (a * b) turn a TypeError into NotImplemented and lose what it says.
    if (!plan.takes_dtype) TORCH_WARN(error.what_without_backtrace());
    throw;
  }
}

// The keys of the CPU's kernel: sparse where an argument is.
template <c10::DispatchKey host_key>
void run_cpu_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  constexpr c10::DispatchKeySet kHostKeys = kCpuKeys | c10::DispatchKeySet(host_key);
  constexpr bool sparse = host_key == c10::DispatchKey::SparseCPU;
  const c10::FunctionSchema& schema = op.schema();
  const bool aten = schema.name().starts_with("aten::");
  const FallbackPlan fresh = aten ? FallbackPlan{} : make_plan(op);
  const FallbackPlan& plan = aten ? kept_plan(op) : fresh;
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasComputedKernelForDispatchKey(host_key), "operator '",
                              op.operator_name(), "' has no kernel for ",
                              sparse ? "sparse tensors of " : "", "device '",
                              driver_facts().device_name, "', and none for 'cpu' to fall back on");

  FallbackCall counted(*plan.record);
  const size_t first = stack->size() - schema.arguments().size();
  c10::IValue* arguments = stack->data() + first;
  const c10::ArrayRef<c10::IValue> given(arguments, schema.arguments().size());
  const c10::Device device = device_of(op, plan, given);
  give_generator(plan.random, arguments, device.index());
  if (plan.device >= 0) arguments[plan.device] = c10::Device(c10::kCPU);

  const c10::OptionalDeviceGuard guard(device.index() == current_device() ? std::nullopt
                                                                          : std::optional(device));
  HostCall call(device.index(), mode_of(op, kHostKeys, plan));
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    c10::IValue& value = arguments[i];
    if (!value.isTensor() && !value.isList()) continue;
    const Writes writes = plan.writes[i];
    const bool is_result = writes == Writes::kResult;
    const bool written = is_result || writes == Writes::kAlways ||
                         (writes == Writes::kInTraining && !evaluates(schema, given));
    value = map_tensors(
        value, [&](const at::Tensor& tensor) { return call.stand_in(tensor, written, is_result); });
  }
  call.wait();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (C10_UNLIKELY(plan.random.draws_inside())) {
    DeviceDraws draws(random_state(default_generator(device.index()), device.index()));
    const DrawScope scope(draws);
    op.redispatchBoxed(kHostKeys, stack);
  } else {
    op.redispatchBoxed(kHostKeys, stack);
  }
  call.write_back();
  adopt_results(plan, call, counted, [&] {
    for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
      c10::IValue& value = (*stack)[i];
      value = map_tensors(value, [&](const at::Tensor& tensor) { return call.adopt(tensor); });
    }
  });
}

template <c10::DispatchKey host_key>
void run_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  if constexpr (host_key == c10::DispatchKey::CPU) {
    const bool aten = op.schema().name().starts_with("aten::");
    if (aten && C10_UNLIKELY(out_form_has_own_kernel(kept_plan(op))))
      return run_composite(op, stack);
    if (C10_UNLIKELY(has_left_out()) && restore_kit_kernel(op.operator_name()))
      return op.redispatchBoxed(keys, stack);
  }
  run_cpu_kernel<host_key>(op, keys, stack);
}

// The same without boxing, for an aten operator of single tensors and numbers that writes to none
// of them and has one result.
template <class Op, class Signature = typename Op::schema>
struct Unboxed;
template <class Op, class... Arguments>
struct Unboxed<Op, at::Tensor(Arguments...)> {
  static at::Tensor run(c10::DispatchKeySet, Arguments... arguments) {
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    static const FallbackPlan& plan = kept_plan(op);
    if (C10_UNLIKELY(out_form_has_own_kernel(plan))) {
      return Op::redispatch(kComposites, arguments...);
    }
    FallbackCall counted(*plan.record);
    CommonDevice common;
    (see(common, arguments), ...);
    const c10::Device device = common.get(op.operator_name());
    const c10::OptionalDeviceGuard guard(
        device.index() == current_device() ? std::nullopt : std::optional(device));
    HostCall call(device.index(), mode_of(op, kCpuKeys, plan));
    const std::tuple<std::decay_t<Arguments>...> hosts{host_value(call, arguments)...};
    call.wait();
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    at::Tensor result = std::apply(
        [](const auto&... values) { return Op::redispatch(kCpuKeys, values...); }, hosts);
    adopt_results(plan, call, counted, [&] { result = call.adopt(result); });
    return result;
  }

 private:
  static void see(CommonDevice& common, const at::Tensor& tensor) {
    if (tensor.defined()) common.see(tensor, false);
  }
  static void see(CommonDevice&, const at::Scalar&) {}
  static at::Tensor host_value(HostCall& call, const at::Tensor& tensor) {
    return call.stand_in(tensor, false);
  }
  static const at::Scalar& host_value(HostCall&, const at::Scalar& number) { return number; }
};

using UnboxedKernels = std::unordered_map<c10::OperatorName, c10::KernelFunction>;

template <class... Ops>
UnboxedKernels unboxed() {
  return {{c10::OperatorName(Ops::name, Ops::overload_name),
           c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(Unboxed<Ops>::run))}...};
}

// Short operators that models call often: boxing is a tenth of such a call.
const UnboxedKernels& unboxed_kernels() {
  namespace ops = at::_ops;
  static const auto* kernels = new UnboxedKernels(
      unboxed<ops::add_Tensor, ops::div_Tensor, ops::exp, ops::mul_Tensor, ops::neg, ops::relu,
              ops::rsqrt, ops::sigmoid, ops::silu, ops::sqrt, ops::sub_Tensor, ops::tanh>());
  return *kernels;
}

template <c10::DispatchKey host_key>
c10::KernelFunction single_kernel(const c10::OperatorName& op) {
  if constexpr (host_key == c10::DispatchKey::CPU) {
    const auto found = unboxed_kernels().find(op);
    if (found != unboxed_kernels().end()) return found->second;
  }
  return c10::KernelFunction::makeFromBoxedFunction<&run_on_host<host_key>>();
}

// The registrations for single operators on PrivateUse1; an empty one was withdrawn.
struct SingleRegistrations {
  std::mutex mutex;
  std::unordered_map<c10::OperatorName, std::optional<c10::RegistrationHandleRAII>> all;
};

SingleRegistrations& single_registrations() { return forever<SingleRegistrations>(); }

bool has_single_registration(const c10::OperatorName& op) {
  SingleRegistrations& single = single_registrations();
  const std::lock_guard lock(single.mutex);
  return single.all.contains(op);
}

template <c10::DispatchKey host_key>
c10::RegistrationHandleRAII register_single(const c10::OperatorName& op, c10::DispatchKey key) {
  return c10::Dispatcher::singleton().registerImpl(
      op, key, single_kernel<host_key>(op), std::nullopt, nullptr,
      std::string(kRegisteredHere) + ":" + std::to_string(__LINE__));
}

// Operators with a CPU kernel and a composite one: without a kernel of its own the device would get
// the composite one, which is a detour (structured operators), or slower and less exact
// (layer_norm). And those that have an unboxed kernel.
template <c10::DispatchKey host_key>
void register_instead_of_composites(c10::DispatchKey key) {
  static auto* kept = new std::vector<c10::RegistrationHandleRAII>;
  using c10::DispatchKey;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op.has_value() || !op->hasKernelForDispatchKey(host_key)) continue;
    if (op->hasKernelForDispatchKey(key)) {
      if (foreign_kernel(*op).has_value()) note_left_out();
      continue;
    }
    const bool is_unboxed = host_key == DispatchKey::CPU && unboxed_kernels().contains(name);
    if (!is_unboxed &&
        !op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional) &&
        !op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) &&
        !op->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) {
      continue;
    }
    if constexpr (host_key == DispatchKey::CPU) {
      single_registrations().all[name] = register_single<host_key>(name, key);
    } else {
      kept->push_back(register_single<host_key>(name, key));
    }
  }
}

template <c10::DispatchKey host_key>
void fall_back_to(c10::DispatchKey key) {
  // torch refuses a second one with this text; from C++ that ends the process.
  static auto* kept = new auto(c10::Dispatcher::singleton().registerFallback(
      key, c10::KernelFunction::makeFromBoxedFunction<&run_on_host<host_key>>(),
      std::string(kRegisteredHere) + ":" + std::to_string(__LINE__) +
          " (bringup's fallback of all operators: register boxed kernels for single ones instead, "
          "and say what may fall back with devices.set_fallback_policy or BRINGUP_FALLBACK)"));
  (void)kept;
  register_instead_of_composites<host_key>(key);
}

}  // namespace

void fall_back(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  run_cpu_kernel<c10::DispatchKey::CPU>(op, keys, stack);
}

void withdraw_fallback(const c10::OperatorName& op) {
  SingleRegistrations& single = single_registrations();
  const std::lock_guard lock(single.mutex);
  const auto found = single.all.find(op);
  if (found == single.all.end() || !found->second.has_value()) return;
  // Below another library's kernel it stays: put back later it would win over that one.
  const auto handle = c10::Dispatcher::singleton().findSchema(op);
  if (handle.has_value() && is_fallback(*handle)) found->second.reset();
}

void restore_fallback(const c10::OperatorName& op) {
  SingleRegistrations& single = single_registrations();
  const std::lock_guard lock(single.mutex);
  const auto found = single.all.find(op);
  if (found == single.all.end() || found->second.has_value()) return;
  found->second = register_single<c10::DispatchKey::CPU>(op, c10::DispatchKey::PrivateUse1);
}

void restore_fallbacks() {
  register_instead_of_composites<c10::DispatchKey::CPU>(c10::DispatchKey::PrivateUse1);
}

bool hands_to_out_form(const c10::OperatorHandle& op) {
  return op.schema().name().starts_with("aten::") && out_form_has_own_kernel(kept_plan(op));
}

void register_fallback() {
  register_host_random();
  fall_back_to<c10::DispatchKey::CPU>(c10::DispatchKey::PrivateUse1);
  fall_back_to<c10::DispatchKey::SparseCPU>(c10::DispatchKey::SparsePrivateUse1);
}

}  // namespace bringup::torch_ext
