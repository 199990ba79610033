#include "engine/executor.h"

#include <algorithm>
#include <map>

#include "engine/error.h"
#include "engine/folding.h"
#include "engine/status.h"

namespace bringup::engine {
namespace {

// The graph, then its subgraphs at any depth that belong to a node that is still there.
void add_with_subgraphs(Graph& graph, std::vector<Graph*>& found) {
  found.push_back(&graph);
  for (NodeId node = graph.first(); node != kNoNode; node = graph.next(node)) {
    for (const Subgraph& child : graph.subgraphs(node)) add_with_subgraphs(*child.graph, found);
  }
}

std::vector<Graph*> with_subgraphs(Graph& graph) {
  std::vector<Graph*> found;
  add_with_subgraphs(graph, found);
  return found;
}

class Run {
 public:
  Run(Graph& graph, std::span<const RegistrationPtr> selected, const RunSettings& settings)
      : graph_(graph), selected_(selected), settings_(settings) {
    report_.graph = graph.name();
    for (Graph* item : with_subgraphs(graph)) shared_[item] = shared_outputs(*item);
  }

  Report execute() {
    const bool done = passes(Stage::kBeforeInferShape) &&
                      step("shape inference", settings_.infer_shapes, [&] { infer(); }) &&
                      passes(Stage::kAfterInferShape) && builtin_passes() &&
                      passes(Stage::kAfterBuiltinFusionPass) &&
                      step("folding", settings_.fold, [&] { fold(); }) &&
                      passes(Stage::kAfterOriginGraphOptimize);
    if (!done && report_.failure.empty()) collect_failures();
    return std::move(report_);
  }

 private:
  bool passes(Stage stage) {
    return run([&](const PassDescriptor& item) { return !item.builtin && item.stage == stage; });
  }

  bool builtin_passes() {
    return run([](const PassDescriptor& item) { return item.builtin; });
  }

  // False when the run ends here.
  template <class IsMeant>
  bool run(IsMeant&& is_meant) {
    bool succeeded = true;
    for (const RegistrationPtr& registration : selected_) {
      if (!is_meant(registration->descriptor)) continue;
      for (Graph* graph : with_subgraphs(graph_)) {
        const PassResult& result = one(*graph, registration);
        if (result.failed()) succeeded = false;
        if (result.failed() && result.fatal) return false;
      }
    }
    return succeeded;
  }

  const PassResult& one(Graph& graph, const RegistrationPtr& registration) {
    const std::string missing = failed_requirement(registration->descriptor);
    if (!missing.empty()) {
      PassResult result;
      result.name = registration->descriptor.pass_name;
      result.version = registration->descriptor.version;
      result.stage = registration->descriptor.stage;
      result.graph = graph.name();
      result.outcome = Outcome::kSkipped;
      result.message = "it requires " + quoted(missing) + ", which failed";
      return report_.results.emplace_back(std::move(result));
    }
    static const Commit kNoCommit;
    const Commit& commit = &graph == &graph_ ? settings_.commit : kNoCommit;
    return report_.results.emplace_back(run_session(
        graph, registration, {settings_.options, settings_.providers, commit}, shared_[&graph]));
  }

  std::string failed_requirement(const PassDescriptor& descriptor) const {
    for (const std::string& name : descriptor.requires_all) {
      const auto failed = std::find_if(
          report_.results.begin(), report_.results.end(), [&](const PassResult& result) {
            return result.name == name && result.outcome == Outcome::kFailed;
          });
      if (failed != report_.results.end()) return name;
    }
    return "";
  }

  // A step of the engine's own, all or nothing.
  template <class Work>
  bool step(const char* name, bool wanted, Work&& work) {
    if (!wanted) return true;
    try {
      work();
      return true;
    } catch (const EngineError& error) {
      report_.failure = std::string(name) + " failed: " + error.what();
      report_.status = status_of(error.code());
      return false;
    }
  }

  void infer() {
    for (Graph* graph : with_subgraphs(graph_)) {
      report_.inferred += infer_shapes(*graph, settings_.providers);
    }
  }

  void fold() {
    report_.folded = fold_constants(graph_, settings_.providers, settings_.commit);
    report_.removed = remove_unread(graph_, settings_.commit);
  }

  void collect_failures() {
    for (const PassResult& result : report_.results) {
      if (!result.failed()) continue;
      report_.failure += report_.failure.empty() ? "" : "; ";
      report_.failure += "pass " + quoted(result.name) + " failed: " + result.message;
      if (report_.status == 0) report_.status = result.status;
    }
    report_.failure += ". Its edits were undone.";
  }

  Graph& graph_;
  std::span<const RegistrationPtr> selected_;
  const RunSettings& settings_;
  std::map<Graph*, SharedOutputs> shared_;
  Report report_;
};

}  // namespace

Report run_passes(Graph& graph, std::span<const RegistrationPtr> selected,
                  const RunSettings& settings) {
  return Run(graph, selected, settings).execute();
}

}  // namespace bringup::engine
