#include "torch/graphs/control_node.h"

#include <nanobind/nanobind.h>
#include <torch/csrc/Exceptions.h>

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

void ControlNode::run(Replay& replay) {
  constexpr uint32_t kLook = 1 << 16;
  if (predicate_.defined() && *static_cast<const bool*>(predicate_.const_data_ptr())) return;
  if (!predicate_.defined() && ++jumps_ % kLook == 0) raise_if_interrupted();
  replay.jump = target_;
}

}  // namespace bringup::torch_ext::graphs
