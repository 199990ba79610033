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

}  // namespace

void ControlNode::go_to(size_t target) {
  target_ = target;
  words_ = (predicate_.defined() ? "if false, node " : "node ") + std::to_string(target);
}

std::optional<size_t> ControlNode::next() {
  constexpr uint32_t kLook = 1 << 16;
  if (!predicate_.defined()) {
    if (++jumps_ % kLook == 0) raise_if_interrupted();
    return target_;
  }
  if (is_read_by_host()) {
    if (*static_cast<const bool*>(predicate_.const_data_ptr())) return std::nullopt;
  } else {
    const OutsideCapture outside;
    if (*static_cast<const bool*>(predicate_.cpu().const_data_ptr())) return std::nullopt;
  }
  return target_;
}

}  // namespace bringup::torch_ext::graphs
