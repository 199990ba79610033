#include "torch/common/out_form.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

namespace bringup::torch_ext {
namespace {

// Every overload that has out arguments, by operator name. Listing the dispatcher takes a
// millisecond: done once, for what was registered until then.
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

// aten::add of aten::add_; dunder operators (aten::__iand__) have no other name.
std::string functional_name(std::string name) {
  if (name.ends_with('_') && !name.ends_with("__")) name.pop_back();
  return name;
}

}  // namespace

std::optional<c10::OperatorHandle> find_out_form(const c10::OperatorHandle& op) {
  for (const c10::OperatorHandle& out : overloads_with_out(functional_name(op.schema().name()))) {
    if (takes_the_same(op.schema(), out.schema())) return out;
  }
  return std::nullopt;
}

}  // namespace bringup::torch_ext
