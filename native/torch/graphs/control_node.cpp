#include "torch/graphs/control_node.h"

#include <nanobind/nanobind.h>
#include <torch/csrc/Exceptions.h>

#include "torch/graphs/outside_capture.h"

namespace bringup::torch_ext::graphs {
namespace {

void raise_if_interrupted() {
  const nanobind::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return;
  python_error error;
  error.persist();
  throw error;  // NOLINT: as torch does
}

SchemaPtr schema_of(const std::string& op) {
  return std::make_shared<const c10::FunctionSchema>(
      op, "", std::vector{c10::Argument("pred", c10::TensorType::get())},
      std::vector<c10::Argument>());
}

}  // namespace

ControlNode::ControlNode(std::string op, std::string scope, at::Tensor predicate,
                         const void* on_device, bool updatable)
    : Node(op, std::move(scope), updatable ? schema_of(op) : nullptr),
      predicate_(std::move(predicate)),
      on_device_(on_device) {}

void ControlNode::go_to(size_t target) {
  target_ = target;
  words_ = (predicate().defined() ? "if false, node " : "node ") + std::to_string(target);
}

std::optional<size_t> ControlNode::next() {
  constexpr uint32_t kLook = 1 << 16;
  if (!predicate().defined()) {
    if (++jumps_ % kLook == 0) raise_if_interrupted();
    return target_;
  }
  if (is_read_by_host()) {
    if (*static_cast<const bool*>(predicate().const_data_ptr())) return std::nullopt;
  } else {
    const OutsideCapture outside;
    if (*static_cast<const bool*>(predicate().cpu().const_data_ptr())) return std::nullopt;
  }
  return target_;
}

}  // namespace bringup::torch_ext::graphs
