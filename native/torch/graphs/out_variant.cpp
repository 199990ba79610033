#include "torch/graphs/out_variant.h"

#include <c10/core/Scalar.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

namespace bringup::torch_ext::graphs {
namespace {

// Every overload that has out arguments, by operator name. Listing the dispatcher takes a
// millisecond: done once for what was registered until then, operators of later libraries use
// allocation replay instead.
const std::vector<c10::OperatorHandle>& overloads_with_out(const std::string& name) {
  static const auto index = [] {
    std::unordered_map<std::string, std::vector<c10::OperatorHandle>> by_name;
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& candidate : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findSchema(candidate);
      if (!op) continue;
      const auto& arguments = op->schema().arguments();
      if (!arguments.empty() && arguments.back().is_out()) by_name[candidate.name].push_back(*op);
    }
    return by_name;
  }();
  static const std::vector<c10::OperatorHandle> none;
  const auto found = index.find(name);
  return found == index.end() ? none : found->second;
}

bool takes_the_same(const c10::FunctionSchema& functional, const c10::FunctionSchema& out) {
  const auto& inputs = functional.arguments();
  const auto& all = out.arguments();
  if (all.size() != inputs.size() + functional.returns().size()) return false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (all[i].name() != inputs[i].name() || *all[i].real_type() != *inputs[i].real_type()) {
      return false;
    }
  }
  return std::all_of(all.begin() + static_cast<ptrdiff_t>(inputs.size()), all.end(),
                     [](const c10::Argument& argument) {
                       return argument.is_out() &&
                              argument.type()->kind() == c10::TypeKind::TensorType;
                     });
}

// Whether torch itself registered the operator's cpu kernel: its generated files do.
bool has_kernel_of_torch(const c10::OperatorHandle& op) {
  return op.getComputedKernelForDispatchKey(c10::DispatchKey::CPU)
             .debug()
             .find("aten/src/ATen/Register") != std::string::npos;
}

// torch's kernel of relu is a call of clamp_min, and it has no out form of its own.
std::optional<OutVariant> out_variant_of_relu() {
  const auto op = c10::Dispatcher::singleton().findSchema({"aten::clamp_min", "out"});
  if (!op) return std::nullopt;
  return OutVariant{*op, {at::Scalar(0)}};
}

std::optional<OutVariant> candidate(const c10::OperatorHandle& functional) {
  if (c10::toString(functional.operator_name()) == "aten::relu") return out_variant_of_relu();
  for (const c10::OperatorHandle& op : overloads_with_out(functional.operator_name().name)) {
    if (takes_the_same(functional.schema(), op.schema())) return OutVariant{op, {}};
  }
  return std::nullopt;
}

}  // namespace

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
