// Finding a pattern in a graph.
//
// A match binds nodes of the pattern to nodes one to one and its inputs to values. Choices (the
// order of commutative operands, which reader of a value is meant, alternatives) are tried in turn,
// depth first, those that cannot fit left out, within a fixed number of second tries.
// tests/oracles/matching has the same in plain Python: matches, their order and near misses must
// agree.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "engine/analysis/alias_analysis.h"
#include "engine/analysis/placement.h"
#include "engine/match/bindings.h"
#include "engine/match/lookahead.h"
#include "engine/match/near_miss.h"

namespace bringup::engine {

// A match that may be rewritten. Valid until the graph is edited or the matcher is asked again.
struct PlacedMatch {
  const Bindings* bound;
  NodeId before;              // where the replacement goes
  std::vector<NodeId> hoist;  // must move in front of it
  std::vector<NodeId> nodes;  // that are matched, in graph order
};

// One program in one graph, which may be edited between calls; all must live longer. One thread.
class Matcher {
 public:
  // `objects`: what the program's opaque host arguments are in `graph`, in order, or kNoSlot.
  Matcher(std::shared_ptr<const Program> program, const Graph& graph, const AliasAnalysis& aliases,
          std::vector<uint32_t> objects = {});

  const Program& program() const { return *program_; }
  // The next match among the first candidates, by the anchor's types, then by the graph.
  std::optional<PlacedMatch> next();
  // The first match whose first output is computed by `target`.
  std::optional<PlacedMatch> match_at(NodeId target);
  // The nodes of the anchor's types now; when there is none, the near miss says so.
  std::vector<NodeId> candidates();
  // The refusal that came furthest over all calls.
  const std::optional<NearMiss>& near_miss() const { return near_miss_; }
  // A match that its taker refused.
  void refuse(NodeId node, std::string reason);

 private:
  struct Goal {
    enum class Kind : uint8_t { kTerm, kRun, kBind, kDecide, kKeywords };
    Kind kind = Kind::kTerm;
    uint32_t frame = 0;
    uint32_t wanted = 0;              // a term; kBind, kKeywords: a node; kDecide: a choice
    uint32_t count = 0;               // kRun: items; kDecide: the alternative
    const Argument* found = nullptr;  // kTerm: an item; kRun: the first item
    NodeId node = kNoNode;            // to blame; kBind, kKeywords: the target
  };
  struct Cell {
    Goal goal;
    uint32_t rest;
  };
  static constexpr uint32_t kEmpty = UINT32_MAX;
  // A choice with alternatives left: those from number `next` on.
  struct Pending {
    size_t savepoint;
    size_t cells;
    uint32_t rest;
    std::vector<Goal> goals;
    std::vector<size_t> ends;
    size_t next;
  };

  bool is_hopeless();
  bool may_be_left_out(NodeId target);
  uint32_t most_nodes() const;
  std::optional<uint32_t> most_nodes_at(const Anchor& anchor, NodeId target);
  bool is_possible() const;
  bool occurs(const PatternNode& wanted) const;
  bool may_stand(const Term& wanted, std::span<const ArgumentForms> positions) const;

  void reset();
  std::optional<PlacedMatch> search();
  uint32_t go_on(uint32_t rest);
  std::optional<uint32_t> go_back();
  uint32_t push(std::span<const Goal> goals, uint32_t rest);
  void give_up();

  // What is put between two ends is one alternative of what remains to compare; none: no fit.
  void put(const Goal& goal) { goals_.push_back(goal); }
  void end_alternative() { ends_.push_back(goals_.size()); }

  struct Option {
    std::vector<Decision> decisions;
    uint32_t node;  // kNoSlot: the decisions are enough
  };
  bool seed();
  std::vector<Option> seed_options(uint32_t output);
  void add_seeds(const Option& option);
  std::vector<NodeId> seed_targets(uint32_t slot);
  std::vector<NodeId> linked_targets(uint32_t slot);
  uint32_t rarest(const PatternNode& node) const;
  bool reads_known(const PatternNode& node) const;
  const PatternEdge* edge_to_known(uint32_t slot) const;

  void compare(const Goal& goal);
  void compare_term(const Goal& goal);
  void compare_host(const Goal& goal);
  template <class Fits>
  bool fits_kind(const Goal& goal, const Fits& fits) const;
  void compare_nest(const Goal& goal);
  void compare_list(const Goal& goal);
  void compare_items(const Goal& goal, uint32_t term, const Argument* found);
  void compare_value(const Goal& goal);
  void compare_input(const Goal& goal);
  void compare_choice(const Goal& goal);
  void compare_variadic(const Goal& goal, const Argument* items, uint32_t count, bool is_list);
  void compare_each(const Goal& goal, const Argument* items, uint32_t count);
  void bind_name(const Goal& goal, NamePlace place, Captured captured, const std::string& text);
  std::vector<uint32_t> fitting_alternatives(const Goal& goal, const PatternChoice& choice);
  void refuse_alternatives(const Goal& goal, const PatternChoice& choice);
  void bind_node(const Goal& goal);
  bool is_free(const Goal& goal, const PatternNode& wanted);
  bool may_stand_for(const Goal& goal, const PatternNode& wanted);
  void bind_constant(const Goal& goal, const PatternNode& wanted);
  void compare_keywords(const Goal& goal);
  void order_arguments(const Goal& goal, const PatternNode& wanted);
  void put_arguments(const Goal& goal, const PatternNode& wanted, bool swapped);
  bool plausible(uint32_t frame, uint32_t term, ArgumentSpan found);
  bool is_as_stated(uint32_t frame, ValueId wanted, ValueId found);
  bool has_control_edges(uint32_t frame, bool is_input, uint32_t slot, NodeId found);
  bool has_control_edge(NodeId source, NodeId target);
  NodeId bound_source(uint32_t frame, const PatternEdge& edge) const;
  bool fit_sizes(uint32_t frame, const CompiledConstraint& constraint, ValueId wanted, NodeId found,
                 const TensorDesc& desc);

  std::optional<PlacedMatch> accept();
  bool is_computed_inside(const ReplacedPart& part);
  bool is_ordered_as_stated(const ReplacedPart& part);
  bool is_stated(NodeId source, NodeId target) const;
  bool passes(const std::optional<PlacementRefusal>& refusal);

  template <class Make>
  void refuse_with(NodeId node, Make&& make);
  void differs(const Goal& goal);
  std::string term_text(uint32_t frame, uint32_t term) const;
  std::string found_text(const Argument* found) const;
  std::string run_text(const Argument* items, uint32_t count) const;
  std::string pattern_value(uint32_t frame, ValueId value) const;
  const Graph& pattern_graph(uint32_t frame) const { return *bound_.sub(frame).pattern->graph; }

  std::shared_ptr<const Program> program_;
  const Graph& graph_;
  const AliasAnalysis& aliases_;
  Predicates predicates_;
  Lookahead ahead_;
  Bindings bound_;
  std::optional<NearMiss> near_miss_;
  uint32_t retries_;

  std::vector<NodeId> targets_;
  size_t next_target_ = 0;
  bool started_ = false;
  bool has_matched_ = false;
  std::optional<uint32_t> most_nodes_;  // that a candidate can bind, until something matched
  std::optional<bool> possible_;        // whether the graph has what every match needs

  std::vector<Cell> cells_;
  std::vector<Pending> pending_;
  uint32_t tried_ = 0;
  std::vector<Goal> goals_;   // of the alternatives just made
  std::vector<size_t> ends_;  // where each ends in goals_
};

}  // namespace bringup::engine
