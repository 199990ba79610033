// Which candidates need no search.
//
// A search can give a match, or a near miss better than the one that is known. A candidate that can
// give neither is left out, so what stands here changes no answer: neither the matches, nor their
// order, nor the near miss.
#include <algorithm>

#include "engine/match/matcher.h"

namespace bringup::engine {

// Whether no candidate can match or come further. Not asked after a match: edits may follow.
bool Matcher::is_hopeless() {
  if (!near_miss_ || has_matched_) return false;
  if (!most_nodes_) most_nodes_ = most_nodes();
  if (near_miss_->matched < *most_nodes_) return false;
  if (!possible_) possible_ = is_possible();
  return !*possible_;
}

// How many nodes any candidate can bind: none whose operator is absent, nor what only it leads to.
uint32_t Matcher::most_nodes() const {
  const SubPattern& root = program_->root();
  const auto is_there = [&](uint32_t slot) { return graph_.count(root.nodes[slot].type) > 0; };
  if (root.outputs.size() == 1) {
    return static_cast<uint32_t>(program_->nodes_behind(root.outputs, true, is_there).size());
  }
  uint32_t count = 0;  // the other outputs are reached from what they read
  for (uint32_t slot = 0; slot < program_->size(); ++slot) count += is_there(slot) ? 1 : 0;
  return count;
}

// Whether the graph has a call for every node that a match needs, each looked at by itself.
bool Matcher::is_possible() const {
  const std::vector<uint32_t>& needed = program_->required();
  return std::all_of(needed.begin(), needed.end(),
                     [&](uint32_t slot) { return occurs(program_->root().nodes[slot]); });
}

bool Matcher::occurs(const PatternNode& wanted) const {
  if (graph_.count(wanted.type) == 0) return false;
  if (wanted.is_constant) return true;
  const std::span<const NodeId> calls = graph_.find(wanted.type);
  const bool exchanges = std::any_of(calls.begin(), calls.end(),
                                     [&](NodeId call) { return graph_.op(call).commutes; });
  const std::span<const ArgumentForms> forms = graph_.forms(wanted.type);
  uint32_t position = 0;
  for (uint32_t term = wanted.arguments.first; term < wanted.arguments.end; ++position) {
    const bool is_either = exchanges && position < 2;
    const size_t first = std::min<size_t>(is_either ? 0 : position, forms.size());
    const size_t count = std::min<size_t>(is_either ? 2 : 1, forms.size() - first);
    if (!may_stand(program_->term(term), forms.subspan(first, count))) return false;
    term += 1 + program_->term(term).extent;
  }
  return true;
}

// Whether some call has at one of these positions what fits the term.
bool Matcher::may_stand(const Term& wanted, std::span<const ArgumentForms> positions) const {
  const bool is_ignored = !program_->pattern().attributes && wanted.plain;
  const bool is_leaf = wanted.kind == Term::Kind::kHost || wanted.kind == Term::Kind::kAny ||
                       wanted.kind == Term::Kind::kConstant;
  if (is_ignored || !is_leaf) return true;
  const auto fits = [&](const Argument& leaf) { return predicates_.fits_leaf(wanted, leaf); };
  return std::any_of(positions.begin(), positions.end(), [&](const ArgumentForms& forms) {
    if (forms.others && wanted.kind != Term::Kind::kHost) return true;
    return std::any_of(forms.leaves.begin(), forms.leaves.end(), fits);
  });
}

// Whether a look at a candidate's arguments tells that it neither matches nor comes further.
bool Matcher::may_be_left_out(NodeId target) {
  if (!near_miss_) return false;
  const Anchor* only = nullptr;
  for (const Anchor& anchor : program_->anchors()) {
    if (program_->root().nodes[anchor.node].type != graph_.type(target)) continue;
    if (only != nullptr || !anchor.decisions.empty()) return false;
    only = &anchor;
  }
  if (only == nullptr || program_->root().nodes[only->node].is_constant) return false;
  const std::optional<uint32_t> most = most_nodes_at(*only, target);
  return most && *most <= near_miss_->matched;
}

// How many nodes a search here can bind before it fails; nothing when it may match.
std::optional<uint32_t> Matcher::most_nodes_at(const Anchor& anchor, NodeId target) {
  const SubPattern& root = program_->root();
  const PatternNode& wanted = root.nodes[anchor.node];
  if (wanted.argument_count != graph_.argument_count(target)) return 0;
  ahead_.reset();
  const ArgumentSpan found = graph_.arguments(target);
  uint32_t mismatch = ahead_.first_mismatch(root, wanted.arguments, found, false);
  if (mismatch < wanted.argument_count && commutes(graph_, target)) {
    const uint32_t swapped = ahead_.first_mismatch(root, wanted.arguments, found, true);
    if (swapped >= 2) mismatch = std::max(mismatch, swapped);  // otherwise that order is not tried
  }
  if (mismatch == wanted.argument_count) return std::nullopt;
  return anchor.reached[mismatch];
}

}  // namespace bringup::engine
