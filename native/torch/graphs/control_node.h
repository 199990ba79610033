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
  // `predicate`: one bool at a fixed address; undefined: none.
  ControlNode(std::string op, std::string scope, at::Tensor predicate)
      : Node(std::move(op), std::move(scope), nullptr), predicate_(std::move(predicate)) {}

  void go_to(size_t target);

  // The node with which the replay goes on, after the former ones; none for the one behind. A loop
  // that does not end can be interrupted (Ctrl-C).
  std::optional<size_t> next();
  bool is_read_by_host() const { return !predicate_.defined() || predicate_.is_cpu(); }
  void run(Replay& replay) override { replay.jump = next(); }
  std::optional<size_t> target() const override { return target_; }
  const char* kind() const override { return "control"; }
  const char* method() const override { return words_.c_str(); }
  const char* why_no_higher() const override { return "it is control flow"; }
  void visit_accesses(const AccessVisitor& visit) const override {
    if (predicate_.defined()) visit(predicate_, false);
  }

 private:
  at::Tensor predicate_;
  size_t target_ = 0;
  std::string words_;
  uint32_t jumps_ = 0;
};

}  // namespace bringup::torch_ext::graphs
