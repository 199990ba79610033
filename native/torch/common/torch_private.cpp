#include "torch/common/torch_private.h"

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

}  // namespace

const c10::impl::OperatorEntry& operator_entry(const c10::OperatorHandle& op) {
  // Dispatcher::OperatorDef is private too; its first member is the OperatorEntry.
  return *reinterpret_cast<const c10::impl::OperatorEntry*>(operator_def(op));
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

}  // namespace bringup::torch_ext
