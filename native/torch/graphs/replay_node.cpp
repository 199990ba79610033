#include "torch/graphs/replay_node.h"

#include <nanobind/nanobind.h>

#include "torch/graphs/errors.h"
#include "torch/graphs/outside_capture.h"
#include "torch/graphs/recorder.h"
#include "torch/graphs/recorder_key.h"

namespace bringup::torch_ext::graphs {

ReplayNode::ReplayNode(std::string scope, std::shared_ptr<Graph> graph)
    : EagerCall("replay", std::move(scope), nullptr), graph_(std::move(graph)) {
  waits_ = graph_->devices().empty();
}

void ReplayNode::run_between_graphs() {
  const nanobind::gil_scoped_acquire gil;
  graph_->with_given([this] { graph_->replay(); });
}

void Recorder::record_replay(std::shared_ptr<Graph> graph) {
  OperatorTraits traits;
  traits.name = "replay";
  if (graph->memory_pool() == pool_->shared_memory()) {
    throw CaptureFailure(
        "a graph cannot be replayed in a capture that has the same memory pool, where it would "
        "overwrite what is captured: give one of them a pool of its own");
  }
  ++seen_;
  graph->visit_accesses([&](const at::Tensor& tensor, bool writes) {
    if (tensor.storage().nbytes() == 0) return;
    if (pool_->find(tensor.storage()) != nullptr) return check_readable(traits, tensor);
    const OutsideCapture outside;
    if (!writes || restorer_.remember(tensor.storage())) return;
    throw CaptureFailure(
        "a graph is replayed in captures of two threads: each would put back what the other one "
        "has written. Capture one after the other");
  });
  random_.before({}, false);
  if (computes()) {
    const c10::impl::ExcludeDispatchKeyGuard exclude(kRecorderKey);
    set_paused(true);
    const auto on = c10::make_scope_exit([this] { set_paused(false); });
    graph->with_given([&] { graph->replay(); });
  }
  random_.after(traits.name);
  random_.has_eager_calls();
  at_.reset();
  for (const auto device : graph->devices()) {
    use_device(device);
    streams_.ran(current_stream(device), traits.name);
  }
  auto node = std::make_unique<ReplayNode>(scope_, std::move(graph));
  if (at_) node->set_device(*at_);
  node->set_line(lines_.here());
  nodes_.push_back(std::move(node));
}

}  // namespace bringup::torch_ext::graphs
