// Rewriting what patterns match.
#include "engine/error.h"
#include "engine/found_match.h"
#include "engine/rewriter.h"
#include "engine/rewriting.h"

namespace bringup::engine {
namespace {

class PatternRewriting {
 public:
  PatternRewriting(Graph& graph, Pass& instance, PassContext& context, PassResult& result)
      : graph_(graph),
        instance_(instance),
        context_(context),
        result_(result),
        storages_(std::in_place, graph),
        attempts_(graph, storages_, context, result) {}

  void run() {
    for (const PatternPtr& pattern : instance_.patterns(graph_, context_)) {
      programs_.push_back(Program::compile(pattern));
    }
    attempts_.sweep_until_stable([&] {
      result_.near_misses.clear();
      for (const auto& program : programs_) sweep(program);
    });
  }

 private:
  void sweep(const std::shared_ptr<const Program>& program) {
    Matcher matcher(program, graph_, *storages_);
    while (!attempts_.is_spent()) {
      const std::optional<Candidate> candidate = matcher.next();
      if (!candidate) break;
      const NodeId last = candidate->nodes.back();
      const auto reason = attempts_.make([&] { return rewrite(*program, *candidate); });
      if (reason && graph_.alive(last)) matcher.refuse(last, *reason);
    }
    if (matcher.near_miss()) result_.near_misses.push_back(*matcher.near_miss());
  }

  std::optional<std::string> rewrite(const Program& program, const Candidate& candidate) {
    const FoundMatch match(graph_, program, candidate);
    const NodeId before = candidate.before;
    const std::vector<NodeId> hoist = candidate.hoist;
    if (!instance_.meet_requirements(match, context_)) return "meet_requirements returned False";
    const GraphPtr replacement = instance_.replacement(match, context_);
    if (replacement == nullptr) {
      throw EngineError(ErrorCode::kPass, "the replacement of a match of " +
                                              quoted(match.pattern_name()) + " is no graph");
    }
    const std::vector<ValueId> inputs = match.inputs();
    const std::vector<NodeId> nodes = match.nodes();
    for (const NodeId node : hoist) graph_.move_before(node, before);
    replace(graph_, *replacement, Site{inputs, match.outputs(), nodes, before}, *storages_,
            context_.providers);
    return std::nullopt;
  }

  Graph& graph_;
  Pass& instance_;
  PassContext& context_;
  PassResult& result_;
  std::optional<Storages> storages_;
  Attempts attempts_;
  std::vector<std::shared_ptr<const Program>> programs_;
};

}  // namespace

void rewrite_patterns(Graph& graph, Pass& instance, PassContext& context, PassResult& result) {
  PatternRewriting(graph, instance, context, result).run();
}

}  // namespace bringup::engine
