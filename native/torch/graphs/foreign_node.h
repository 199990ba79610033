// A call of a kernel that other code registered for the device, in a captured graph.
#pragma once

#include <string>

#include "bringup/driver.h"
#include "torch/graphs/node.h"

namespace bringup::torch_ext::graphs {

// The operator runs once more, in a stream that the driver captures: what it gives the stream
// becomes one node of the driver's graph, with the same memory as when it was recorded.
class ForeignNode final : public Node {
 public:
  // `kernel`: where it comes from, for messages. `pool`: what the call's memory is of.
  ForeignNode(std::string op, std::string scope, OperatorNode::Call call, std::string kernel,
              std::shared_ptr<Pool> pool)
      : Node(std::move(op), std::move(scope), call.schema),
        call_(std::move(call)),
        kernel_(std::move(kernel)),
        pool_(std::move(pool)) {}

  // Whether the loaded driver captures streams.
  static bool is_possible();

  // CaptureFailure where the driver cannot capture what the operator does.
  void add_to(bringup_graph graph, c10::DeviceIndex device) const;
  // Runs it in the current stream. CaptureFailure where it asks for other memory.
  void call_again() const;
  void run(Replay&) override { call_again(); }
  void visit_accesses(const AccessVisitor& visit) const override;
  c10::ArrayRef<c10::IValue> arguments() const override { return call_.args; }
  const ForeignNode* captured_call() const override { return this; }
  // Memory that it asked for, results included.
  const std::vector<Allocation>& allocations() const { return call_.allocations; }
  const std::string& kernel() const { return kernel_; }
  const char* kind() const override { return "operator"; }
  const char* method() const override { return "stream capture"; }

 private:
  [[noreturn]] void refuse(const std::string& why) const;

  OperatorNode::Call call_;
  std::string kernel_;
  std::shared_ptr<Pool> pool_;
};

}  // namespace bringup::torch_ext::graphs
