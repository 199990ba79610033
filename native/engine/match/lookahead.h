// Whether an argument can fit at all, whatever has been bound: leaves out hopeless choices.
//
// Compared are operators and host arguments, as deep as the pattern goes; that two readers need the
// same value is not. So an answer depends on nothing but the two ends and can be remembered, which
// keeps stacked diamonds from being walked once for every path through them.
#pragma once

#include <unordered_map>
#include <vector>

#include "engine/match/predicates.h"

namespace bringup::engine {

class Lookahead {
 public:
  explicit Lookahead(const Predicates& predicates)
      : predicates_(predicates), program_(predicates.program()), graph_(predicates.graph()) {}

  // Forget everything: the graph may have been edited.
  void reset() {
    if (!known_.empty()) known_.clear();
  }
  // Whether the two ends fit at first sight: types only, nothing behind them.
  bool looks_alike(const SubPattern& sub, uint32_t wanted, ArgumentSpan found);
  // The first argument that does not fit at sight, 0 and 1 exchanged if `swapped`; or the count.
  uint32_t first_mismatch(const SubPattern& sub, TermRange wanted, ArgumentSpan found,
                          bool swapped);
  // Whether `found` can fit as far as operators and host arguments say, all the way down.
  bool fits(const SubPattern& sub, uint32_t wanted, ArgumentSpan found);

 private:
  enum class Answer : uint8_t { kNo, kYes, kLater };
  struct Pair {
    uint32_t node;  // slot in the sub-pattern
    NodeId found;
  };
  using Pairs = std::vector<Pair>;

  uint64_t key(const SubPattern& sub, const Pair& pair) const {
    return uint64_t{sub.first_node + pair.node} << 32 | pair.found;
  }
  Answer nodes_fit(const SubPattern& sub, const Pair& pair, Pairs& behind);
  Answer orders_fit(const SubPattern& sub, TermRange wanted, ArgumentSpan found, bool swapped,
                    Pairs& behind);
  // `behind` is null for a first look.
  Answer compare(const SubPattern& sub, uint32_t wanted, ArgumentSpan found, Pairs* behind);
  Answer compare_value(const SubPattern& sub, const Term& wanted, ArgumentSpan found,
                       Pairs* behind);
  Answer compare_list(const SubPattern& sub, uint32_t wanted, ArgumentSpan found, Pairs* behind);
  bool compare_open(const Term& wanted, ArgumentSpan found) const;
  static Answer either(Answer one, Answer other);

  const Predicates& predicates_;
  const Program& program_;
  const Graph& graph_;
  std::unordered_map<uint64_t, bool> known_;
};

// Whether the first two arguments of this call may change places.
bool commutes(const Graph& graph, NodeId node);

}  // namespace bringup::engine
