#include "engine/run/executor.h"

#include <algorithm>
#include <map>

#include "engine/util/error.h"

namespace bringup::engine {
namespace {

class Run {
 public:
  Run(RunHost& host, std::span<const RegistrationPtr> selected) : host_(host), selected_(selected) {
    const std::vector<Graph*> graphs = host.graphs();
    report_.graph = graphs.front()->name();
    for (const Graph* graph : graphs) shared_[graph] = shared_outputs(*graph);
  }

  Report execute() {
    const bool done =
        passes(Stage::kBeforeInferShape) &&
        step("shape inference", [&] { host_.infer_shapes(); }) && passes(Stage::kAfterInferShape) &&
        builtin_passes() && passes(Stage::kAfterBuiltinFusionPass) &&
        step("folding", [&] { host_.fold(); }) && passes(Stage::kAfterOriginGraphOptimize);
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
      for (Graph* graph : host_.graphs()) {
        const PassResult& result = one(*graph, registration);
        if (result.failed()) succeeded = false;
        if (result.failed() && result.fatal) return false;
      }
    }
    return succeeded;
  }

  const PassResult& one(Graph& graph, const RegistrationPtr& registration) {
    const PassDescriptor& descriptor = registration->descriptor;
    const std::string missing = failed_requirement(descriptor);
    if (!missing.empty()) {
      PassResult result = result_of(descriptor, graph);
      result.outcome = Outcome::kSkipped;
      result.message = "it requires " + in_quotes(missing) + ", which failed";
      report_.results.push_back(std::move(result));
    } else {
      const std::unique_ptr<SessionHost> session = host_.open(graph, registration);
      report_.results.push_back(run_session(registration, *session, shared_[&graph]));
    }
    host_.report_result(report_.results.back(), graph);
    return report_.results.back();
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
  bool step(const char* name, Work&& work) {
    try {
      work();
      return true;
    } catch (const EngineError& error) {
      report_.failure = std::string(name) + " failed: " + error.what();
      report_.status = status_of(error.code());
      return false;
    }
  }

  void collect_failures() {
    for (const PassResult& result : report_.results) {
      if (!result.failed()) continue;
      report_.failure += report_.failure.empty() ? "" : "; ";
      report_.failure += "pass " + in_quotes(result.name) + " failed: " + result.message;
      if (report_.status == 0) report_.status = result.status;
    }
    report_.failure += ". Its edits were undone.";
  }

  RunHost& host_;
  std::span<const RegistrationPtr> selected_;
  std::map<const Graph*, SharedOutputs> shared_;
  Report report_;
};

}  // namespace

Report run_passes(RunHost& host, std::span<const RegistrationPtr> selected) {
  return Run(host, selected).execute();
}

}  // namespace bringup::engine
