// Calls with longer lists of tensors than their kernel takes: made of calls with parts of them.
#include <ATen/core/stack.h>

#include <algorithm>
#include <utility>

#include "torch/operators/operator_kernel.h"

namespace bringup::torch_ext {
namespace {

// How many parts; 0 for a call that is made as a whole. Such operators begin with a list.
size_t parts_of(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments) {
  if (kernel.most_listed == 0 || !kernel.enabled.load(std::memory_order_relaxed)) return 0;
  const size_t all = arguments.front().toListRef().size();
  return all <= kernel.most_listed ? 0 : (all + kernel.most_listed - 1) / kernel.most_listed;
}

c10::IValue part_of(const c10::IValue& value, size_t part, const OperatorKernel& kernel) {
  if (!value.isTensorList()) return value;
  const c10::ArrayRef<c10::IValue> all = value.toListRef();
  c10::List<at::Tensor> some;
  const size_t first = part * kernel.most_listed;
  for (size_t i = first; i < std::min(first + kernel.most_listed, all.size()); ++i) {
    some.push_back(all[i].toTensor());
  }
  return some;
}

}  // namespace

bool call_in_parts(const OperatorKernel& kernel, const c10::OperatorHandle& op, c10::Stack* stack) {
  const size_t count = kernel.arguments.size();
  const size_t parts = parts_of(kernel, torch::jit::last(*stack, count));
  if (parts == 0) return false;
  c10::Stack whole = torch::jit::pop(*stack, count);
  c10::List<at::Tensor> made;
  for (size_t part = 0; part < parts; ++part) {
    for (const c10::IValue& value : whole) stack->push_back(part_of(value, part, kernel));
    op.callBoxed(stack);
    if (!kernel.writes_lists()) made.push_back(torch::jit::pop(*stack).toTensor());
  }
  if (kernel.writes_lists()) return true;
  whole.front() = std::move(made);  // of cat: joined like what it got
  stack->insert(stack->end(), whole.begin(), whole.end());
  op.callBoxed(stack);
  return true;
}

bool is_made_in_parts(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  const auto* const kernel = dynamic_cast<const OperatorKernel*>(find_kernel(op));
  return kernel != nullptr && parts_of(*kernel, arguments) > 0;
}

}  // namespace bringup::torch_ext
