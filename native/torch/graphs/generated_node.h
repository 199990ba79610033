// A kernel that torch.compile's generator wrote, in a captured graph.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "torch/devices/driver.h"
#include "torch/graphs/node.h"

namespace bringup::torch_ext::graphs {

// A tensor that a generated kernel gets the address of.
struct LaunchTensor {
  at::Tensor tensor;
  bool reads;
  bool writes;
};

// A launch with plain values, which the driver starts. It has no schema: no update writes it.
class GeneratedNode final : public Node {
 public:
  // `tensors`: they own what predates the capture.
  GeneratedNode(std::string scope, PlainLaunch launch, std::vector<LaunchTensor> tensors)
      : Node(launch.kernel.name, std::move(scope), nullptr),
        launch_(std::move(launch)),
        tensors_(std::move(tensors)),
        arguments_(launch_.arguments()) {}

  void run(Replay&) override { launch_plain_values(launch_); }
  const bringup_launch_values_args* device_values() const override { return &arguments_; }
  void visit_accesses(const AccessVisitor& visit) const override;
  const char* kind() const override { return "kernel"; }
  const char* method() const override { return "generated"; }

 private:
  const PlainLaunch launch_;
  const std::vector<LaunchTensor> tensors_;
  const bringup_launch_values_args arguments_;  // of launch_
};

// Whether a capture records what this thread starts.
bool is_recording() noexcept;
// Starts a generated kernel in the current stream, as launch_plain_values, and keeps it in the
// capture that runs. CaptureFailure where that cannot.
void launch_recorded(PlainLaunch launch, std::vector<LaunchTensor> tensors);

}  // namespace bringup::torch_ext::graphs
