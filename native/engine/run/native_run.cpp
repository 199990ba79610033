#include "engine/run/native_run.h"

#include "engine/rewrite/folding.h"
#include "engine/run/host_sessions.h"

namespace bringup::engine {
namespace {

void add_with_subgraphs(Graph& graph, std::vector<Graph*>& found) {
  found.push_back(&graph);
  for (NodeId node = graph.first(); node != kNoNode; node = graph.next(node)) {
    for (const Subgraph& child : graph.subgraphs(node)) add_with_subgraphs(*child.graph, found);
  }
}

class NativeRun : public RunHost {
 public:
  NativeRun(Graph& graph, const RunSettings& settings) : graph_(graph), settings_(settings) {}

  std::vector<Graph*> graphs() override {
    std::vector<Graph*> found;
    add_with_subgraphs(graph_, found);
    return found;
  }

  std::unique_ptr<SessionHost> open(Graph& graph, const RegistrationPtr& pass) override {
    static const Commit kNoCommit;
    const Commit& commit = &graph == &graph_ ? settings_.commit : kNoCommit;
    const SharedRunState state{settings_.options, settings_.providers, commit};
    if (pass->of_host) return settings_.host->open(graph, pass, state);
    return native_session(graph, pass, state);
  }

  void infer_shapes() override {
    if (!settings_.infer_shapes) return;
    for (Graph* graph : graphs()) inferred_ += engine::infer_shapes(*graph, settings_.providers);
  }

  void fold() override {
    if (!settings_.fold) return;
    folded_ = fold_constants(graph_, settings_.providers, settings_.commit);
    removed_ = remove_unread(graph_, settings_.commit);
  }

  Report counted(Report report) const {
    report.inferred = inferred_;
    report.folded = folded_;
    report.removed = removed_;
    return report;
  }

 private:
  Graph& graph_;
  const RunSettings& settings_;
  uint64_t inferred_ = 0;
  uint64_t folded_ = 0;
  uint64_t removed_ = 0;
};

}  // namespace

Report run_passes(Graph& graph, std::span<const RegistrationPtr> selected,
                  const RunSettings& settings) {
  NativeRun run(graph, settings);
  return run.counted(run_passes(run, selected));
}

}  // namespace bringup::engine
