#include "torch/common/torch_private.h"

namespace bringup::torch_ext {
namespace {

// Explicit instantiation may name private members ([temp.spec]/6); the friend function carries them out.
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

}  // namespace

const c10::impl::OperatorEntry& operator_entry(const c10::OperatorHandle& op) {
  // Dispatcher::OperatorDef is private too; its first member is the OperatorEntry.
  return *reinterpret_cast<const c10::impl::OperatorEntry*>(operator_def(op));
}

c10::DispatchKeySet non_fallthrough_keys(const c10::OperatorHandle& op) {
  return extractor_keys(operator_entry(op).dispatchKeyExtractor());
}

}  // namespace bringup::torch_ext
