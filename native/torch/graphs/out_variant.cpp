#include "torch/graphs/out_variant.h"

#include <c10/core/Scalar.h>

#include <mutex>
#include <string>
#include <unordered_map>

#include "torch/common/out_form.h"
#include "torch/common/torch_private.h"

namespace bringup::torch_ext::graphs {
namespace {

// torch's kernel of relu is a call of clamp_min, and it has no out form of its own.
std::optional<OutVariant> out_variant_of_relu() {
  const auto op = c10::Dispatcher::singleton().findSchema({"aten::clamp_min", "out"});
  if (!op) return std::nullopt;
  return OutVariant{*op, {at::Scalar(0)}};
}

std::optional<OutVariant> candidate(const c10::OperatorHandle& functional) {
  if (c10::toString(functional.operator_name()) == "aten::relu") return out_variant_of_relu();
  if (functional.schema().is_mutable()) return std::nullopt;  // it has nothing to allocate
  const auto out = find_out_form(functional);
  return out ? std::optional(OutVariant{*out, {}}) : std::nullopt;
}

}  // namespace

bool has_kernel_of_torch(const c10::OperatorHandle& op) {
  // What a kernel's registration says of it is a long text, made anew for each who asks.
  struct Known {
    c10::KernelFunction kernel;
    bool of_torch;
  };
  static std::mutex mutex;
  static std::unordered_map<const c10::impl::OperatorEntry*, Known> known;
  const auto& entry = operator_entry(op);
  const c10::KernelFunction& kernel = entry.lookup(c10::DispatchKeySet(c10::DispatchKey::CPU));
  const std::lock_guard lock(mutex);
  const auto found = known.find(&entry);
  if (found != known.end() && found->second.kernel._equalsBoxedAndUnboxed(kernel)) {
    return found->second.of_torch;
  }
  const bool of_torch = op.getComputedKernelForDispatchKey(c10::DispatchKey::CPU)
                            .debug()
                            .find("aten/src/ATen/Register") != std::string::npos;  // generated
  known.insert_or_assign(&entry, Known{kernel, of_torch});
  return of_torch;
}

std::optional<OutVariant> find_out_variant(const c10::OperatorHandle& functional) {
  auto found = candidate(functional);
  if (!found || !found->op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) return std::nullopt;
  if (functional.operator_name().name.starts_with("aten::") &&
      !(has_kernel_of_torch(functional) && has_kernel_of_torch(found->op))) {
    return std::nullopt;
  }
  return found;
}

}  // namespace bringup::torch_ext::graphs
