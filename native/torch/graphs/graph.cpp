#include "torch/graphs/graph.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <utility>

namespace bringup::torch_ext::graphs {
namespace {

// Replay runs below autograd and sees no mode, no autocast and no recorder, whatever the caller has
// switched on.
class ReplayDispatch {
 public:
  ReplayDispatch()
      : guard_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
               c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset) {
  }

 private:
  c10::impl::ForceDispatchKeyGuard guard_;
};

}  // namespace

Graph::Graph(std::shared_ptr<Pool> pool, std::vector<std::unique_ptr<Node>> nodes,
             std::vector<Input> inputs)
    : pool_(std::move(pool)), nodes_(std::move(nodes)), inputs_(std::move(inputs)) {}

void Graph::replay() {
  run_all([this](Node& node) { node.run(replay_); });
}

void Graph::validate() {
  run_all([this](Node& node) { node.validate(replay_); });
}

template <class Step>
void Graph::run_all(Step&& step) {
  const std::lock_guard lock(mutex_);
  check_inputs();
  const ReplayDispatch dispatch;
  replay_.tap = ReplayTap();
  const TapScope tap(&replay_.tap);
  size_t position = 0;
  try {
    for (; position < nodes_.size(); ++position) step(*nodes_[position]);
  } catch (c10::Error& error) {
    const Node& node = *nodes_[position];
    error.add_context("in node " + std::to_string(position) + " of a captured graph: " + node.op() +
                      (node.scope().empty() ? "" : " in " + node.scope()));
    replay_.stack.clear();
    throw;
  }
  replay_.stack.clear();
}

void Graph::check_inputs() const {
  for (const Input& input : inputs_) {
    TORCH_CHECK(input.storage.data() == input.address, "a tensor that the graph captured (",
                input.what, ") has other memory now, it was resized or swapped: capture again");
  }
}

void Graph::write(const std::vector<Change>& changes) {
  const std::lock_guard lock(mutex_);
  for (const Change& change : changes) {
    nodes_[change.node]->set_host_value(change.argument, change.value);
  }
}

}  // namespace bringup::torch_ext::graphs
