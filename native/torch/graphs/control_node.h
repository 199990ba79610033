// The nodes of control flow in a graph's list of nodes: torch.cond is two stretches of nodes of
// which a replay runs one, torch.while_loop two that it repeats.
#pragma once

#include <string>
#include <utility>

#include "torch/graphs/node.h"

namespace bringup::torch_ext::graphs {

// Where it finds false, and without a predicate always, the replay goes on with its target. A
// device's graph is cut there, and the host goes on, unless all that lies between runs on the host.
class ControlNode final : public Node {
 public:
  // `predicate`: one bool at a fixed address, as the host reads it; undefined: none. `on_device`:
  // where the device finds it, or null. `updatable`: it is a slot, for another tensor of the host.
  ControlNode(std::string op, std::string scope, at::Tensor predicate, const void* on_device,
              bool updatable);

  void go_to(size_t target);

  // The node with which the replay goes on, after the former ones; none for the one behind. A loop
  // that does not end can be interrupted (Ctrl-C).
  std::optional<size_t> next();
  bool is_read_by_host() const { return !predicate().defined() || predicate().is_cpu(); }
  bool has_predicate() const { return predicate().defined(); }
  const void* on_device() const { return on_device_; }
  // Lets a loop of the device's end, where the host sees its memory.
  void set_false() const { *static_cast<bool*>(predicate().data_ptr()) = false; }
  void run(Replay& replay) override { replay.jump = next(); }
  std::optional<size_t> target() const override { return target_; }
  const char* kind() const override { return "control"; }
  const char* method() const override { return words_.c_str(); }
  const char* why_no_higher() const override { return "it is control flow"; }
  void visit_accesses(const AccessVisitor& visit) const override {
    if (predicate().defined()) visit(predicate(), false);
  }
  bool updatable() const override { return schema() != nullptr; }
  c10::ArrayRef<c10::IValue> arguments() const override { return predicate_; }
  void set_host_value(size_t /*index*/, const HostValue& value) override { predicate_ = value; }

 private:
  const at::Tensor& predicate() const { return predicate_.toTensor(); }

  c10::IValue predicate_;
  const void* on_device_;
  size_t target_ = 0;
  std::string words_;
  uint32_t jumps_ = 0;
};

}  // namespace bringup::torch_ext::graphs
