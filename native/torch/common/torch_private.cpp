#include "torch/common/torch_private.h"

#include <ATen/native/transformers/attention.h>
#include <torch/csrc/autograd/engine.h>

namespace bringup::torch_ext {
namespace {

// Explicit instantiation may name private members ([temp.spec]/6); the friend function carries them
// out.
template <auto Member>
struct OperatorDef {
  friend auto operator_def(const c10::OperatorHandle& op) { return op.*Member; }
};
auto operator_def(const c10::OperatorHandle& op);
template struct OperatorDef<&c10::OperatorHandle::operatorDef_>;

template <auto Member>
struct NonFallthrough {
  friend c10::DispatchKeySet extractor_keys(const c10::DispatchKeyExtractor& extractor) {
    return extractor.*Member;
  }
};
c10::DispatchKeySet extractor_keys(const c10::DispatchKeyExtractor& extractor);
template struct NonFallthrough<&c10::DispatchKeyExtractor::nonFallthroughKeys_>;

template <auto Member>
struct NonFallthroughPerBackend {
  friend const auto& extractor_backend_keys(const c10::DispatchKeyExtractor& extractor) {
    return extractor.*Member;
  }
};
const auto& extractor_backend_keys(const c10::DispatchKeyExtractor& extractor);
template struct NonFallthroughPerBackend<&c10::DispatchKeyExtractor::nonFallthroughKeysPerBackend_>;

template <auto Member>
struct RequiresPerBackend {
  friend bool extractor_is_per_backend(const c10::DispatchKeyExtractor& extractor) {
    return extractor.*Member;
  }
};
bool extractor_is_per_backend(const c10::DispatchKeyExtractor& extractor);
template struct RequiresPerBackend<&c10::DispatchKeyExtractor::requiresBitsetPerBackend_>;

template <auto Member>
struct VersionCounter {
  friend const void* version_counter(const c10::VariableVersion& version) {
    return (version.*Member).get();
  }
};
const void* version_counter(const c10::VariableVersion& version);
template struct VersionCounter<&c10::VariableVersion::version_counter_>;

// Asking the stub itself links to a function that libtorch has under another signature: its
// arguments follow macros that only torch's own files are compiled with.
template <auto Member>
struct AttentionStub {
  friend const auto& stub_pointers(
      const at::native::_fused_sdp_choice_stub_DECLARE_DISPATCH_type& s) {
    return s.*Member;
  }
};
const auto& stub_pointers(const at::native::_fused_sdp_choice_stub_DECLARE_DISPATCH_type& s);
template struct AttentionStub<
    &at::native::DispatchStub<at::native::fused_sdp_choice_fn,
                              at::native::_fused_sdp_choice_stub_DECLARE_DISPATCH_type>::impl>;

// A derived class may name protected members of its base.
struct AutogradEngine : torch::autograd::Engine {
  static constexpr auto kQueues = &AutogradEngine::device_ready_queues_;
  static constexpr auto kThreadPool = &AutogradEngine::thread_pool_shared_;
  static constexpr auto kStart = &AutogradEngine::start_device_threads;
};

}  // namespace

const void* version_identity(const c10::VariableVersion& version) {
  return version_counter(version);
}

const c10::impl::OperatorEntry& operator_entry(const c10::OperatorHandle& op) {
  // Dispatcher::OperatorDef is private too; its first member is the OperatorEntry.
  return *reinterpret_cast<const c10::impl::OperatorEntry*>(operator_def(op));
}

bool is_unboxed(const c10::OperatorHandle& op, c10::DispatchKeySet keys) {
  const c10::KernelFunction& kernel = operator_entry(op).lookup(keys);
  return kernel.isValidUnboxed() || kernel.isValidSymUnboxed();
}

c10::DispatchKeySet non_fallthrough_keys(const c10::OperatorHandle& op) {
  return extractor_keys(operator_entry(op).dispatchKeyExtractor());
}

c10::DispatchKeySet effective_keys(const c10::impl::OperatorEntry& entry,
                                   c10::DispatchKeySet tensors) {
  const c10::DispatchKeyExtractor& extractor = entry.dispatchKeyExtractor();
  if (C10_LIKELY(!extractor_is_per_backend(extractor))) {
    return c10::impl::computeDispatchKeySet(tensors, extractor_keys(extractor));
  }
  const c10::impl::LocalDispatchKeySet tls = c10::impl::tls_local_dispatch_key_set();
  const auto backend = ((tensors | tls.included_) - tls.excluded_).getBackendIndex();
  return c10::impl::computeDispatchKeySet(tensors, extractor_backend_keys(extractor)[backend]);
}

bool has_attention_choice() {
  return stub_pointers(at::native::_fused_sdp_choice_stub).privateuse1_dispatch_ptr != nullptr;
}

void require_autograd_devices(c10::DeviceIndex count) {
  const auto& engine = torch::autograd::Engine::get_default_engine();
  const size_t queues = (engine.*AutogradEngine::kQueues).size();
  TORCH_CHECK(queues == 0 || queues >= static_cast<size_t>(count),
              "autograd already runs with threads for ", queues, " devices, and the driver has ",
              count, ": load the driver before the first backward of this process");
}

bool start_autograd_device_threads(c10::DeviceIndex count) {
  auto& engine = torch::autograd::Engine::get_default_engine();
  const bool started = engine.*AutogradEngine::kThreadPool != nullptr;
  if (!started || (engine.*AutogradEngine::kQueues).size() >= static_cast<size_t>(count))
    return false;
  (engine.*AutogradEngine::kStart)();
  return true;
}

}  // namespace bringup::torch_ext
