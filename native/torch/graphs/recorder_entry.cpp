// Where the dispatcher enters the recorder: one boxed function under a key that only a capturing
// thread includes.
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/ScopeExit.h>
#include <torch/library.h>

#include "torch/common/written_arguments.h"
#include "torch/devices/state.h"
#include "torch/graphs/errors.h"
#include "torch/graphs/recorder.h"
#include "torch/graphs/recorder_key.h"
#include "torch/graphs/values.h"
#include "torch/operators/operator_kernel.h"

namespace bringup::torch_ext::graphs {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

// Something between us and autograd takes the call apart, or it is about no real data at all (a
// compiler at work): what it calls in turn comes back here. A dispatch mode alone is no such thing:
// torch hides our key from what the mode calls, so the call is recorded here, as it was made.
bool belongs_to_others(const c10::OperatorHandle& op, DispatchKeySet keys,
                       const std::vector<c10::IValue>& stack) {
  constexpr DispatchKeySet kInterpreters(
      {DispatchKey::Fake, DispatchKey::Functionalize, DispatchKey::FuncTorchDynamicLayerBackMode,
       DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper, DispatchKey::Batched});
  if (keys.has_any(kInterpreters) || keys.has_backend(c10::BackendComponent::MetaBit)) return true;
  if (!keys.has(DispatchKey::Python)) return false;
  return any_tensor(torch::jit::last(stack, op.schema().arguments().size()), is_subclass);
}

bool is_autocast_here(const c10::OperatorHandle& op, DispatchKeySet keys) {
  const DispatchKeySet autocast = keys & c10::autocast_dispatch_keyset;
  return !autocast.empty() && op.hasKernelForDispatchKey(autocast.highestPriorityTypeId());
}

// Runs `call`, which autocast's kernels may be part of, with autocast's cache of cast weights off:
// a cast from before the capture would be a constant, and one from the capture would leak to later
// eager code with memory that replays write. The cache is one for all threads, the switch is this
// thread's.
template <class Call>
void without_cast_cache(Call&& call) {
  const bool former = at::autocast::is_autocast_cache_enabled();
  at::autocast::set_autocast_cache_enabled(false);
  const auto back = c10::make_scope_exit([&] { at::autocast::set_autocast_cache_enabled(former); });
  call();
}

// Made of other operators by its registration, but on cpu it fills its result by itself.
bool computes_on_cpu(const OperatorTraits& traits) { return traits.name == "aten::max_pool1d"; }

// Of a call that makes a tensor out of none, the device that it asks for.
bool asks_for_device(const OperatorTraits& traits, const std::vector<c10::IValue>& stack) {
  if (traits.device < 0) return false;
  const auto args = torch::jit::last(stack, traits.schema->arguments().size());
  const c10::IValue& device = args[static_cast<size_t>(traits.device)];
  return device.isDevice() && device.toDevice().is_privateuseone();
}

// A call on the device of what torch makes of other operators, as the dispatcher runs it: these may
// be native, and the whole has no kernel but the CPU's.
bool is_made_of_native(const OperatorTraits& traits, DispatchKeySet keys,
                       const std::vector<c10::IValue>& stack) {
  if (!traits.made_of_others || traits.no_node() || traits.is_copy() || traits.has_kernel) {
    return false;
  }
  const auto backend = keys.highestBackendKey();
  const bool on_device =
      backend == c10::BackendComponent::PrivateUse1Bit ||
      (backend == c10::BackendComponent::InvalidBit && asks_for_device(traits, stack));
  if (!on_device) return false;
  if (!driver_facts().host_visible) return true;
  return !traits.reads_values && traits.of_torch && has_native_kernels();
}

bool is_composite_here(const OperatorTraits& traits, const c10::OperatorHandle& op,
                       DispatchKeySet keys) {
  if ((!traits.composite && !traits.random) || traits.has_kernel) return false;
  const auto backend = keys.highestBackendKey();
  if (backend == c10::BackendComponent::CPUBit && computes_on_cpu(traits)) return false;
  const auto dense = c10::toRuntimePerBackendFunctionalityKey(
      DispatchKey::Dense,
      backend == c10::BackendComponent::InvalidBit ? c10::BackendComponent::CPUBit : backend);
  return !op.hasKernelForDispatchKey(dense);
}

bool is_zero(const at::Tensor& tensor) { return tensor._is_zerotensor(); }

// Whether torch makes the call out of others because of lazy zeros, which have no memory. What does
// not know them gets real ones, made by nodes of their own.
bool is_made_of_zeros(const c10::OperatorHandle& op, DispatchKeySet& keys,
                      std::vector<c10::IValue>* stack) {
  const auto& arguments = op.schema().arguments();
  const auto any = [&] { return any_tensor(torch::jit::last(*stack, arguments.size()), is_zero); };
  if (!any()) return false;
  if (op.hasKernelForDispatchKey(DispatchKey::ZeroTensor)) return true;
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[stack->size() - arguments.size() + i];
    if (may_write(op.schema(), arguments[i])) continue;
    value = map_tensors(value, [](const at::Tensor& t) { return is_zero(t) ? t.clone() : t; });
  }
  // One that is to be written is left, which torch refuses.
  if (any()) return true;
  keys = keys.remove(DispatchKey::ZeroTensor);
  return false;
}

void on_operator(const c10::OperatorHandle& op, DispatchKeySet keys,
                 std::vector<c10::IValue>* stack) {
  DispatchKeySet below = keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, kRecorderKey);
  Recorder* recorder = Recorder::current();
  if (recorder == nullptr || recorder->paused()) return op.redispatchBoxed(below, stack);
  const auto busy = recorder->busy_scope();
  if (belongs_to_others(op, below, *stack) || is_made_of_zeros(op, below, stack)) {
    return without_cast_cache([&] { op.redispatchBoxed(below, stack); });
  }
  if (is_autocast_here(op, below)) {
    return recorder->within_autocast(
        [&] { without_cast_cache([&] { op.redispatchBoxed(below, stack); }); });
  }
  try {
    const OperatorTraits& traits = recorder->traits_of(op);
    if (traits.of_allocator) return torch::jit::drop(*stack, traits.schema->arguments().size());
    if (recorder->handled(traits, op, stack)) return;
    if (recorder->splits_at(traits, op, stack)) {
      return recorder->record_eager(traits, op, below, stack);
    }
    const bool below_autograd =
        is_made_of_native(traits, below, *stack) ||
        is_made_in_parts(op, torch::jit::last(*stack, traits.schema->arguments().size()));
    if (below_autograd || is_composite_here(traits, op, below)) {
      recorder->check_read_by_address(traits, *stack);
      recorder->note_without_node(traits);
      // A dispatch mode would get it whole, and what it then calls would be hidden from us.
      op.redispatchBoxed(below.remove(DispatchKey::Python), stack);
      if (below_autograd) recorder->check_gradient(traits, *stack);
      return;
    }
    recorder->record(traits, op, below, stack);
  } catch (const CaptureFailure& failure) {
    if (!recorder->notes(failure)) throw_through_dispatcher(failure);
    recorder->run_unrecorded(op, below, stack);
  }
}

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  static_assert(kRecorderKey == DispatchKey::DeferredInit);
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_operator>());
}

}  // namespace
}  // namespace bringup::torch_ext::graphs
