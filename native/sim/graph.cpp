#include "sim/graph.h"

#include <cstring>

#include "sim/faults.h"
#include "sim/status.h"

namespace bringup::sim {

void Graph::add(OwnedLaunch launch) {
  auto copy = std::make_shared<const LaunchCopy>(launch.get());
  add(std::move(copy), std::move(launch));
}

void Graph::add(ValuesLaunch launch) {
  add(std::make_shared<const ValuesLaunch>(std::move(launch)), std::nullopt);
}

void Graph::add(GraphKernel kernel, std::optional<OwnedLaunch> launch) {
  std::lock_guard lock(mutex_);
  std::lock_guard kernels_lock(kernels_mutex_);
  GraphKernels& kernels = changeable_kernels();
  nodes_.push_back(KernelNode{kernels.size(), std::move(launch)});
  kernels.push_back(std::move(kernel));
}

void Graph::add(CopyTask copy) {
  std::lock_guard lock(mutex_);
  nodes_.push_back(copy);
}

void Graph::add(HostTask host) {
  std::lock_guard lock(mutex_);
  nodes_.push_back(host);
}

void Graph::add(std::vector<Task> captured) {
  std::lock_guard lock(mutex_);
  nodes_.emplace_back(std::move(captured));
}

std::pair<std::shared_ptr<Graph>*, std::shared_ptr<Graph>*> Graph::add(bringup_conditional kind,
                                                                       const uint8_t* predicate) {
  std::lock_guard lock(mutex_);
  std::lock_guard kernels_lock(kernels_mutex_);
  nodes_.push_back(ConditionalNode{kind, predicate, parts_.size()});
  auto& first = parts_.emplace_back(std::make_shared<Graph>(device_));
  return {&first, &parts_.emplace_back(std::make_shared<Graph>(device_))};
}

void Graph::update(int32_t kernel, const bringup_launch& launch) {
  update(kernel, std::make_shared<const LaunchCopy>(launch));
}

void Graph::update(int32_t kernel, ValuesLaunch launch) {
  update(kernel, std::make_shared<const ValuesLaunch>(std::move(launch)));
}

void Graph::update(int32_t number, GraphKernel kernel) {
  std::lock_guard lock(kernels_mutex_);
  if (number < 0 || static_cast<size_t>(number) >= kernels_->size()) {
    throw SimError(BRINGUP_INVALID, "the graph has " + std::to_string(kernels_->size()) +
                                        " kernels, so none of number " + std::to_string(number));
  }
  if ((*kernels_)[static_cast<size_t>(number)].index() != kernel.index()) {
    throw SimError(BRINGUP_INVALID, "kernel " + std::to_string(number) +
                                        " of the graph was added in the other form: update it with "
                                        "the function of the form it was added by");
  }
  changeable_kernels()[static_cast<size_t>(number)] = std::move(kernel);
}

std::shared_ptr<const GraphKernels> Graph::kernels() {
  std::lock_guard lock(kernels_mutex_);
  if (parts_.empty()) return kernels_;
  auto all = std::make_shared<GraphKernels>(*kernels_);
  for (const auto& part : parts_) all->parts.push_back(part->kernels());
  return all;
}

GraphKernels& Graph::changeable_kernels() {
  if (kernels_.use_count() > 1) kernels_ = std::make_shared<GraphKernels>(*kernels_);
  return *kernels_;
}

std::optional<Failure> Graph::run_kernel(const GraphKernel& kernel, const Place& place) {
  const auto* values = std::get_if<std::shared_ptr<const ValuesLaunch>>(&kernel);
  const auto* launch = std::get_if<std::shared_ptr<const LaunchCopy>>(&kernel);
  if (Faults::active()) {
    const char* name = values != nullptr ? (*values)->name().c_str() : (*launch)->get().name;
    if (auto failure = Faults::instance().graph_kernel(name, place)) return failure;
  }
  return values != nullptr ? (*values)->run(place) : run_launch((*launch)->get(), place);
}

std::optional<Failure> Graph::run_captured(std::vector<Task>& tasks, const Place& place) {
  for (Task& task : tasks) {
    const auto* launch = std::get_if<OwnedLaunch>(&task);
    const auto* values = std::get_if<OwnedValues>(&task);
    if (Faults::active() && (launch != nullptr || values != nullptr)) {
      const char* name = values != nullptr ? (*values)->name().c_str() : launch->get().name;
      if (auto failure = Faults::instance().graph_kernel(name, place)) return failure;
    }
    if (auto failure = run_task(task, place)) return failure;
  }
  return std::nullopt;
}

std::optional<Failure> Graph::run_conditional(const ConditionalNode& node,
                                              const GraphKernels& kernels, const Place& place,
                                              const std::function<bool()>& stopped) {
  const auto run_part = [&](size_t number) {
    return parts_[number]->run(*kernels.parts[number], place, stopped);
  };
  if (node.kind == BRINGUP_CONDITIONAL_IF) {
    return run_part(*node.predicate != 0 ? node.number : node.number + 1);
  }
  while (!stopped()) {
    if (auto failure = run_part(node.number)) return failure;
    if (*node.predicate == 0) break;
    if (auto failure = run_part(node.number + 1)) return failure;
  }
  return std::nullopt;
}

std::optional<Failure> Graph::run(const GraphKernels& kernels, const Place& place,
                                  const std::function<bool()>& stopped) {
  std::lock_guard lock(mutex_);
  for (Node& node : nodes_) {
    if (const auto* kernel = std::get_if<KernelNode>(&node)) {
      if (kernel->number >= kernels.size()) break;  // added after this launch
      if (auto failure = run_kernel(kernels[kernel->number], place)) return failure;
    } else if (auto* captured = std::get_if<std::vector<Task>>(&node)) {
      if (auto failure = run_captured(*captured, place)) return failure;
    } else if (const auto* conditional = std::get_if<ConditionalNode>(&node)) {
      if (conditional->number >= kernels.parts.size()) break;  // likewise
      if (auto failure = run_conditional(*conditional, kernels, place, stopped)) return failure;
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
