#include "torch/graphs/generated_node.h"

#include "torch/graphs/errors.h"
#include "torch/graphs/recorder.h"

namespace bringup::torch_ext::graphs {

void GeneratedNode::visit_accesses(const AccessVisitor& visit) const {
  for (const LaunchTensor& used : tensors_) {
    if (used.reads) visit(used.tensor, false);
    if (used.writes) visit(used.tensor, true);
  }
}

bool is_recording() noexcept {
  const Recorder* const recorder = Recorder::current();
  return recorder != nullptr && !recorder->paused();
}

void launch_recorded(PlainLaunch launch, std::vector<LaunchTensor> tensors) {
  Recorder& recorder = *Recorder::current();
  try {
    recorder.prepare_launch(launch, tensors);
  } catch (const CaptureFailure& failure) {
    if (!recorder.notes(failure)) throw;
    return launch_plain_values(launch);
  }
  launch_plain_values(launch);
  recorder.add_launch(std::move(launch), std::move(tensors));
}

void Recorder::prepare_launch(const PlainLaunch& launch, const std::vector<LaunchTensor>& tensors) {
  ++seen_;
  OperatorTraits traits;
  traits.name = launch.kernel.name;
  use_device(launch.device);
  for (const LaunchTensor& used : tensors) {
    if (used.reads) check_readable(traits, used.tensor);
    if (used.writes) about_to_write(traits, used.tensor);
  }
}

void Recorder::add_launch(PlainLaunch launch, std::vector<LaunchTensor> tensors) {
  OperatorTraits traits;
  traits.name = launch.kernel.name;
  streams_.ran(current_stream(launch.device), traits.name);
  for (LaunchTensor& used : tensors) {
    if (used.writes) {
      mark_written(used.tensor);
      versions_.add(used.tensor);
    }
    used.tensor = fixed(traits, used.tensor);
  }
  const auto device = static_cast<c10::DeviceIndex>(launch.device);
  nodes_.push_back(std::make_unique<GeneratedNode>(scope_, std::move(launch), std::move(tensors)));
  nodes_.back()->set_line(lines_.here());
  nodes_.back()->set_device(device);
}

}  // namespace bringup::torch_ext::graphs
