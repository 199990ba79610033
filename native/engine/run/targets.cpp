#include "engine/run/targets.h"

#include <algorithm>

#include "engine/analysis/placement.h"
#include "engine/util/error.h"

namespace bringup::engine {
namespace {

constexpr uint32_t kRoot = 0;  // the frame of the pattern itself

class NodesOfTypes : public Targets {
 public:
  NodesOfTypes(Graph& graph, std::span<const std::string> op_types, const AliasAnalysis& aliases)
      : graph_(graph), op_types_(op_types), aliases_(aliases) {}

  size_t searches() const override { return 1; }

  void start(size_t) override {
    nodes_.clear();
    following_ = 0;
    near_miss_.reset();
    std::string wanted;
    for (const std::string& type : op_types_) {
      const std::span<const NodeId> found = graph_.find(Strings::intern(type));
      nodes_.insert(nodes_.end(), found.begin(), found.end());
      wanted += (wanted.empty() ? "" : ", ") + type;
    }
    std::sort(nodes_.begin(), nodes_.end(),
              [&](NodeId one, NodeId other) { return graph_.is_before(one, other); });
    if (nodes_.empty()) near_miss_ = {wanted, "", "the graph has no " + wanted, "", "", 0, 0};
  }

  Target* next() override {
    target_.reset();
    while (following_ < nodes_.size()) {
      const NodeId node = nodes_[following_++];
      if (graph_.alive(node)) return &target_.emplace(graph_, node);
    }
    return nullptr;
  }

  std::optional<std::string> refusal() const override {
    const NodeId node = target_->node();
    ReplacedPart part{{node}, {}, {}};
    for (uint32_t index = 0; index < graph_.output_count(node); ++index) {
      part.outputs.push_back({node, index});
    }
    auto refusal = why_not_operators(graph_, part);
    if (!refusal) refusal = why_not_unwritten(graph_, part, aliases_);
    return refusal ? std::optional(refusal->text(graph_)) : std::nullopt;
  }

  void refuse(const std::string& reason) override {
    const NodeId node = target_->node();
    if (near_miss_ || !graph_.alive(node)) return;
    near_miss_ = {std::string(Strings::text(graph_.type(node))),
                  std::string(graph_.name_text(node)),
                  reason,
                  "",
                  "",
                  0,
                  0};
  }

  const std::optional<NearMiss>& near_miss() const override { return near_miss_; }

 private:
  Graph& graph_;
  std::span<const std::string> op_types_;
  const AliasAnalysis& aliases_;
  std::vector<NodeId> nodes_;
  size_t following_ = 0;
  std::optional<Target> target_;
  std::optional<NearMiss> near_miss_;
};

class MatchesOfPatterns : public Targets {
 public:
  MatchesOfPatterns(Graph& graph, std::vector<PatternProgram> patterns,
                    const AliasAnalysis& aliases)
      : graph_(graph), patterns_(std::move(patterns)), aliases_(aliases) {}

  size_t searches() const override { return patterns_.size(); }

  void start(size_t search) override {
    search_ = search;
    const PatternProgram& pattern = patterns_[search];
    matcher_.emplace(pattern.program, graph_, aliases_, pattern.objects);
  }

  Target* next() override {
    target_.reset();
    std::optional<PlacedMatch> found = matcher_->next();
    if (!found) return nullptr;
    return &target_.emplace(graph_, search_, *patterns_[search_].program, std::move(*found));
  }

  void refuse(const std::string& reason) override {
    const NodeId last = target_->nodes().back();
    if (graph_.alive(last)) matcher_->refuse(last, reason);
  }

  const std::optional<NearMiss>& near_miss() const override { return matcher_->near_miss(); }

 private:
  Graph& graph_;
  const std::vector<PatternProgram> patterns_;
  const AliasAnalysis& aliases_;
  size_t search_ = 0;
  std::optional<Matcher> matcher_;
  std::optional<Target> target_;
};

}  // namespace

Target::Target(Graph& graph, size_t search, const Program& program, PlacedMatch found)
    : graph_(graph),
      nodes_(std::move(found.nodes)),
      before_(found.before),
      hoist_(std::move(found.hoist)),
      search_(search),
      program_(&program),
      bound_(found.bound) {
  const SubPattern& root = program.root();
  for (uint32_t slot = 0; slot < root.inputs.size(); ++slot) {
    inputs_.push_back(bound_->input(kRoot, slot));
  }
  for (const uint32_t term : root.outputs) {
    const std::optional<ValueId> value = bound_->resolve(kRoot, term);
    if (!value) throw_error(ErrorCode::kInternal, "an output of a match stands for nothing");
    outputs_.push_back(*value);
  }
}

const Match& Target::match() {
  if (!match_) match_.emplace(graph_, *program_, *bound_, nodes_);
  return *match_;
}

Boundary::Part Target::part(size_t outputs) const {
  if (is_match()) return {inputs_, outputs_, nodes_, before_, hoist_};
  return {
      values_read(graph_, node()), values_computed(graph_, node(), outputs), nodes_, before_, {}};
}

std::unique_ptr<Targets> nodes_of_types(Graph& graph, std::span<const std::string> op_types,
                                        const AliasAnalysis& aliases) {
  return std::make_unique<NodesOfTypes>(graph, op_types, aliases);
}

std::unique_ptr<Targets> matches_of(Graph& graph, std::vector<PatternProgram> patterns,
                                    const AliasAnalysis& aliases) {
  return std::make_unique<MatchesOfPatterns>(graph, std::move(patterns), aliases);
}

std::vector<ValueId> values_read(const Graph& graph, NodeId node) {
  std::vector<ValueId> inputs;
  for_each_value(graph.all_arguments(node), [&](ValueId value) {
    if (std::find(inputs.begin(), inputs.end(), value) == inputs.end()) inputs.push_back(value);
  });
  return inputs;
}

std::vector<ValueId> values_computed(const Graph& graph, NodeId node, size_t wanted) {
  std::vector<ValueId> all, used;
  for (uint32_t index = 0; index < graph.output_count(node); ++index) {
    all.push_back({node, index});
    if (!graph.users({node, index}).empty()) used.push_back({node, index});
  }
  return !used.empty() && used.size() == wanted ? used : all;
}

}  // namespace bringup::engine
