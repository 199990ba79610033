#include "sim/graph.h"

#include <cstring>

#include "sim/faults.h"
#include "sim/status.h"

namespace bringup::sim {

void Graph::add(OwnedLaunch launch) {
  auto copy = std::make_shared<const LaunchCopy>(launch.get());
  std::lock_guard lock(mutex_);
  std::lock_guard kernels_lock(kernels_mutex_);
  LaunchCopies& kernels = changeable_kernels();
  nodes_.push_back(KernelNode{kernels.size(), std::move(launch)});
  kernels.push_back(std::move(copy));
}

void Graph::add(CopyTask copy) {
  std::lock_guard lock(mutex_);
  nodes_.push_back(copy);
}

void Graph::add(HostTask host) {
  std::lock_guard lock(mutex_);
  nodes_.push_back(host);
}

void Graph::update(int32_t kernel, const bringup_launch& launch) {
  auto copy = std::make_shared<const LaunchCopy>(launch);
  std::lock_guard lock(kernels_mutex_);
  if (kernel < 0 || static_cast<size_t>(kernel) >= kernels_->size()) {
    throw SimError(BRINGUP_INVALID, "the graph has " + std::to_string(kernels_->size()) +
                                        " kernels, so none of number " + std::to_string(kernel));
  }
  changeable_kernels()[static_cast<size_t>(kernel)] = std::move(copy);
}

std::shared_ptr<const LaunchCopies> Graph::kernels() {
  std::lock_guard lock(kernels_mutex_);
  return kernels_;
}

LaunchCopies& Graph::changeable_kernels() {
  if (kernels_.use_count() > 1) kernels_ = std::make_shared<LaunchCopies>(*kernels_);
  return *kernels_;
}

std::optional<Failure> Graph::run_kernel(const bringup_launch& launch, const Place& place) {
  if (Faults::active()) {
    if (auto failure = Faults::instance().graph_kernel(launch.name, place)) return failure;
  }
  return run_launch(launch, place);
}

std::optional<Failure> Graph::run(const LaunchCopies& kernels, const Place& place) {
  std::lock_guard lock(mutex_);
  for (Node& node : nodes_) {
    if (const auto* kernel = std::get_if<KernelNode>(&node)) {
      if (kernel->number >= kernels.size()) break;  // added after this launch
      if (auto failure = run_kernel(kernels[kernel->number]->get(), place)) return failure;
    } else if (auto* copy = std::get_if<CopyTask>(&node)) {
      std::memmove(copy->dst, copy->src, copy->bytes);
    } else {
      const HostTask& host = std::get<HostTask>(node);
      host.fn(host.user);
    }
  }
  return std::nullopt;
}

}  // namespace bringup::sim
