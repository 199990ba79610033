#include "engine/rewriting.h"

#include <algorithm>

#include "engine/error.h"
#include "engine/rewriter.h"

namespace bringup::engine {

Attempts::Attempts(Graph& graph, std::optional<Storages>& storages, const PassContext& context,
                   PassResult& result)
    : graph_(graph), storages_(storages), context_(context), result_(result) {}

bool Attempts::is_spent() const {
  const uint32_t limit = context_.descriptor.max_rewrites;
  return limit != 0 && result_.matches >= limit;
}

std::optional<std::string> Attempts::refuse(std::string reason) {
  ++result_.refused;
  return reason;
}

void Attempts::undo(const Graph::Mark& mark) {
  if (graph_.journal().size() == mark.edits) return;
  graph_.undo_to(mark);
  storages_.emplace(graph_);
}

void Attempts::sweep_until_stable(const std::function<void()>& sweep) {
  constexpr uint32_t kMost = 1000;
  for (uint32_t sweeps = 0; sweeps < kMost; ++sweeps) {
    const uint64_t before = result_.matches;
    sweep();
    const bool again = context_.descriptor.repeat_until_stable && !is_spent();
    if (!again || result_.matches == before) return;
  }
  throw EngineError(ErrorCode::kPass, "pass " + quoted(context_.descriptor.pass_name) +
                                          " still finds matches after " + std::to_string(kMost) +
                                          " sweeps: it rewrites what it made itself");
}

namespace {

class Decomposition {
 public:
  Decomposition(Graph& graph, Pass& instance, PassContext& context, PassResult& result)
      : graph_(graph),
        instance_(instance),
        context_(context),
        result_(result),
        storages_(std::in_place, graph),
        attempts_(graph, storages_, context, result) {}

  void run() {
    if (find_targets().empty()) report_absence();
    attempts_.sweep_until_stable([&] { sweep(); });
  }

 private:
  void sweep() {
    for (const NodeId node : find_targets()) {
      if (attempts_.is_spent()) return;
      if (!graph_.alive(node)) continue;
      const auto reason = attempts_.make([&] { return rewrite(node); });
      if (reason && result_.near_misses.empty()) {
        result_.near_misses.push_back({type_of(node), name_of(node), *reason, "", "", 0, 0});
      }
    }
  }

  std::vector<NodeId> find_targets() const {
    std::vector<NodeId> targets;
    for (const std::string& type : context_.descriptor.op_types) {
      const std::span<const NodeId> found = graph_.find(Strings::intern(type));
      targets.insert(targets.end(), found.begin(), found.end());
    }
    std::sort(targets.begin(), targets.end(),
              [&](NodeId one, NodeId other) { return graph_.is_before(one, other); });
    return targets;
  }

  void report_absence() {
    std::string wanted;
    for (const std::string& type : context_.descriptor.op_types) {
      wanted += (wanted.empty() ? "" : ", ") + type;
    }
    result_.near_misses.push_back({wanted, "", "the graph has no " + wanted, "", "", 0, 0});
  }

  std::optional<std::string> rewrite(NodeId node) {
    if (!graph_.pure(node)) {
      return "the operator writes memory or is random, so it is never replaced";
    }
    for (uint32_t index = 0; index < graph_.output_count(node); ++index) {
      const NodeId writer = storages_->writer_of({node, index});
      if (writer != kNoNode) {
        return "its memory is written by " + quoted(graph_.name_text(writer)) +
               ", so it is not replaced";
      }
    }
    if (!instance_.meet_requirements(graph_, node, context_)) {
      return "meet_requirements returned False";
    }
    const GraphPtr replacement = instance_.replacement(graph_, node, context_);
    if (replacement == nullptr) {
      throw EngineError(ErrorCode::kPass,
                        "the replacement of " + quoted(graph_.name_text(node)) + " is no graph");
    }
    const std::vector<ValueId> inputs = inputs_of(node);
    const std::vector<ValueId> outputs = outputs_of(node, replacement->outputs().size());
    replace(graph_, *replacement, Site{inputs, outputs, {&node, 1}, node}, *storages_,
            context_.providers);
    return std::nullopt;
  }

  // Every value the node reads, each once.
  std::vector<ValueId> inputs_of(NodeId node) const {
    std::vector<ValueId> inputs;
    for_each_value(graph_.all_arguments(node), [&](ValueId value) {
      if (std::find(inputs.begin(), inputs.end(), value) == inputs.end()) inputs.push_back(value);
    });
    return inputs;
  }

  // Those that are read, if the replacement has as many; else all.
  std::vector<ValueId> outputs_of(NodeId node, size_t wanted) const {
    std::vector<ValueId> all, used;
    for (uint32_t index = 0; index < graph_.output_count(node); ++index) {
      all.push_back({node, index});
      if (!graph_.users({node, index}).empty()) used.push_back({node, index});
    }
    return !used.empty() && used.size() == wanted ? used : all;
  }

  std::string type_of(NodeId node) const { return std::string(Strings::text(graph_.type(node))); }
  std::string name_of(NodeId node) const { return std::string(graph_.name_text(node)); }

  Graph& graph_;
  Pass& instance_;
  PassContext& context_;
  PassResult& result_;
  std::optional<Storages> storages_;
  Attempts attempts_;
};

}  // namespace

void decompose(Graph& graph, Pass& instance, PassContext& context, PassResult& result) {
  Decomposition(graph, instance, context, result).run();
}

}  // namespace bringup::engine
