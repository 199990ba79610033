// A replay of another graph that captured code asked for.
#pragma once

#include <memory>
#include <string>

#include "torch/graphs/eager_node.h"
#include "torch/graphs/graph.h"

namespace bringup::torch_ext::graphs {

// Between two pieces, as the graph's own replay() is: with its checks, its slots' values and its
// pool. It reads and writes what the graph does.
class ReplayNode final : public EagerCall {
 public:
  ReplayNode(std::string scope, std::shared_ptr<Graph> graph);
  void run_between_graphs() override;
  void visit_accesses(const AccessVisitor& visit) const override { graph_->visit_accesses(visit); }
  const char* method() const override { return "replay"; }
  const char* why_no_higher() const override { return "its own nodes have levels"; }

 private:
  const std::shared_ptr<Graph> graph_;
};

}  // namespace bringup::torch_ext::graphs
