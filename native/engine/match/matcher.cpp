// The search: which alternative is tried next.
#include "engine/match/matcher.h"

#include <algorithm>

#include "engine/graph/text.h"
#include "engine/match/matcher_refusal.h"

namespace bringup::engine {

std::string NearMiss::text() const {
  std::string shown = concat(pattern, ": ");
  if (size != 0) shown += concat(matched, " of ", size, " nodes matched, ");
  if (!node.empty()) shown += concat("at ", in_quotes(node), ": ");
  shown += reason;
  if (expected.empty() && got.empty()) return shown;
  return concat(shown, " (expected ", expected, ", got ", got, ")");
}

Matcher::Matcher(std::shared_ptr<const Program> program, const Graph& graph,
                 const AliasAnalysis& aliases, std::vector<uint32_t> objects)
    : program_(std::move(program)),
      graph_(graph),
      aliases_(aliases),
      predicates_(*program_, graph, std::move(objects)),
      ahead_(predicates_),
      bound_(*program_),
      retries_(1000 + 100 * program_->size()) {}

std::vector<NodeId> Matcher::candidates() {
  std::vector<NodeId> found;
  for (const StringId type : program_->anchor_types()) {
    const std::span<const NodeId> nodes = graph_.find(type);
    found.insert(found.end(), nodes.begin(), nodes.end());
  }
  if (found.empty()) {
    const std::string anchor = anchor_text(*program_);
    near_miss_ = NearMiss{program_->pattern().name,
                          "",
                          anchor.empty() ? kReturnsInput : concat("the graph has no ", anchor),
                          "",
                          "",
                          0,
                          program_->size()};
  }
  return found;
}

std::optional<PlacedMatch> Matcher::next() {
  if (!started_) targets_ = candidates();
  started_ = true;
  while (next_target_ < targets_.size() && !is_hopeless()) {
    const NodeId target = targets_[next_target_++];
    if (!graph_.alive(target) || may_be_left_out(target)) continue;
    if (auto found = match_at(target)) {
      has_matched_ = true;
      return found;
    }
  }
  next_target_ = targets_.size();
  return std::nullopt;
}

std::optional<PlacedMatch> Matcher::match_at(NodeId target) {
  reset();
  const StringId type = graph_.type(target);
  for (const Anchor& anchor : program_->anchors()) {
    if (program_->root().nodes[anchor.node].type != type) continue;
    for (const Decision& decision : anchor.decisions) {
      put({Goal::Kind::kDecide, 0, decision.choice, decision.alternative, nullptr, target});
    }
    put({Goal::Kind::kBind, 0, anchor.node, 0, nullptr, target});
    end_alternative();
  }
  if (ends_.empty()) {
    refuse_with(target, [&] {
      return Refusal{"another operator", anchor_text(*program_), type_text(graph_, target)};
    });
  }
  return search();
}

void Matcher::refuse(NodeId node, std::string reason) {
  refuse_with(node, [&] { return Refusal{std::move(reason)}; });
}

void Matcher::reset() {
  bound_.rollback_to(0);
  ahead_.reset();
  cells_.clear();
  pending_.clear();
  goals_.clear();
  ends_.clear();
  tried_ = 0;
}

std::optional<PlacedMatch> Matcher::search() {
  uint32_t rest = kEmpty;
  while (true) {
    uint32_t agenda;
    if (ends_.empty()) {
      const std::optional<uint32_t> back = go_back();
      if (!back) return std::nullopt;
      agenda = *back;
    } else {
      agenda = go_on(rest);
    }
    goals_.clear();
    ends_.clear();
    if (agenda != kEmpty) {
      const Goal goal = cells_[agenda].goal;
      rest = cells_[agenda].rest;
      compare(goal);
      continue;
    }
    rest = kEmpty;
    if (seed()) continue;
    if (auto found = accept()) return found;
  }
}

// Takes the first of the alternatives just made, and keeps the others for later.
uint32_t Matcher::go_on(uint32_t rest) {
  const std::span<const Goal> first(goals_.data(), ends_.front());
  if (ends_.size() == 1) return push(first, rest);
  pending_.push_back({bound_.savepoint(), cells_.size(), rest, goals_, ends_, 1});
  return push(first, rest);
}

// Takes the next alternative of the last choice; nothing when there is none left.
std::optional<uint32_t> Matcher::go_back() {
  if (pending_.empty()) return std::nullopt;
  if (++tried_ > retries_) {
    give_up();
    return std::nullopt;
  }
  Pending& choice = pending_.back();
  bound_.rollback_to(choice.savepoint);
  cells_.resize(choice.cells);
  const size_t start = choice.ends[choice.next - 1];
  const std::span<const Goal> goals(choice.goals.data() + start, choice.ends[choice.next] - start);
  const uint32_t agenda = push(goals, choice.rest);
  if (++choice.next == choice.ends.size()) pending_.pop_back();
  return agenda;
}

uint32_t Matcher::push(std::span<const Goal> goals, uint32_t rest) {
  for (size_t i = goals.size(); i-- > 0;) {
    cells_.push_back({goals[i], rest});
    rest = static_cast<uint32_t>(cells_.size() - 1);
  }
  return rest;
}

void Matcher::give_up() {
  refuse_with(kNoNode, [&] {
    return Refusal{concat("gave up after ", retries_,
                          " tries: too many choices (orders of commutative operands, readers, "
                          "alternatives)")};
  });
}

// Seeding: from a bound value to an output that no walk has reached yet.

// Alternatives of how to go on with the first unbound output; false when all are bound.
bool Matcher::seed() {
  const std::vector<uint32_t>& outputs = program_->root().outputs;
  const auto unbound = std::find_if(outputs.begin(), outputs.end(),
                                    [&](uint32_t term) { return !bound_.resolve(0, term); });
  if (unbound == outputs.end()) return false;
  const std::vector<Option> options = seed_options(*unbound);
  const auto certain = std::find_if(options.begin(), options.end(),
                                    [](const Option& option) { return option.decisions.empty(); });
  if (certain != options.end()) {
    add_seeds(*certain);
  } else {
    for (const Option& option : options) add_seeds(option);
  }
  if (options.empty()) {
    refuse_with(kNoNode,
                [] { return Refusal{"the pattern falls into parts that share no value"}; });
  }
  return true;
}

void Matcher::add_seeds(const Option& option) {
  const auto decide = [&] {
    for (const Decision& decision : option.decisions) {
      put({Goal::Kind::kDecide, 0, decision.choice, decision.alternative, nullptr, kNoNode});
    }
  };
  if (option.node == kNoSlot) {
    decide();
    end_alternative();
    return;
  }
  for (const NodeId target : seed_targets(option.node)) {
    decide();
    put({Goal::Kind::kBind, 0, option.node, 0, nullptr, target});
    end_alternative();
  }
}

// The nodes that may stand for an unbound one, in graph order: what reads a value that is bound, or
// where there is none, what has a control edge. None after a refusal.
std::vector<NodeId> Matcher::seed_targets(uint32_t slot) {
  const PatternNode& node = program_->root().nodes[slot];
  const uint32_t term = rarest(node);
  if (term == kNoSlot) return linked_targets(slot);
  const ValueId target = *bound_.resolve(0, term);
  std::vector<NodeId> readers;
  for (const NodeId user : graph_.users(target)) {
    if (graph_.type(user) == node.type) readers.push_back(user);
  }
  std::sort(readers.begin(), readers.end(),
            [&](NodeId one, NodeId other) { return graph_.is_before(one, other); });
  if (readers.empty()) {
    refuse_with(target.node, [&] {
      return Refusal{"no reader of this value fits", std::string(Strings::text(node.type)),
                     users_text(graph_, target)};
    });
  }
  return readers;
}

// Unbound nodes behind an output with a bound input or edge, and the decisions they imply.
std::vector<Matcher::Option> Matcher::seed_options(uint32_t output) {
  struct Step {
    uint32_t term;
    std::vector<Decision> decisions;
  };
  const SubPattern& root = program_->root();
  std::vector<Option> options;
  std::vector<bool> seen_nodes(root.nodes.size()), seen_choices(root.choices.size());
  std::vector<Step> agenda = {{output, {}}};
  while (!agenda.empty()) {
    const Step step = std::move(agenda.back());
    agenda.pop_back();
    const Term& term = program_->term(step.term);
    if (!term.is_value()) continue;
    if (bound_.resolve(0, step.term)) {
      if (!step.decisions.empty()) options.push_back({step.decisions, kNoSlot});
    } else if (term.kind == Term::Kind::kChoice) {
      if (seen_choices[term.slot]) continue;
      seen_choices[term.slot] = true;
      const uint32_t taken = bound_.choice(0, term.slot);
      const std::vector<uint32_t>& alternatives = root.choices[term.slot].alternatives;
      for (auto i = static_cast<uint32_t>(alternatives.size()); i-- > 0;) {
        if (taken != kNoSlot && taken != i) continue;
        agenda.push_back({alternatives[i], step.decisions});
        if (taken == kNoSlot) agenda.back().decisions.push_back({term.slot, i});
      }
    } else if (term.kind == Term::Kind::kNode && !seen_nodes[term.slot]) {
      seen_nodes[term.slot] = true;
      const PatternNode& node = root.nodes[term.slot];
      if (reads_known(node) || edge_to_known(term.slot) != nullptr) {
        options.push_back({step.decisions, term.slot});
      } else {
        for (size_t i = node.inputs.size(); i-- > 0;) {
          agenda.push_back({node.inputs[i], step.decisions});
        }
      }
    }
  }
  return options;
}

bool Matcher::reads_known(const PatternNode& node) const {
  return std::any_of(node.inputs.begin(), node.inputs.end(),
                     [&](uint32_t term) { return bound_.resolve(0, term).has_value(); });
}

// The bound value among what a pattern node reads that the fewest nodes read.
uint32_t Matcher::rarest(const PatternNode& node) const {
  uint32_t best = kNoSlot;
  size_t fewest = 0;
  for (const uint32_t term : node.inputs) {
    const auto value = bound_.resolve(0, term);
    if (!value) continue;
    const size_t count = graph_.users(*value).size();
    if (best != kNoSlot && count >= fewest) continue;
    best = term;
    fewest = count;
  }
  return best;
}

}  // namespace bringup::engine
