#include "engine/match/lookahead.h"

namespace bringup::engine {

bool commutes(const Graph& graph, NodeId node) {
  const Operator& op = graph.op(node);
  if (!op.commutes || graph.argument_count(node) < 2) return false;
  if (op.commutes_if_one == kAlwaysCommutes) return true;
  const ArgumentSpan scale = item(graph.arguments(node), static_cast<uint32_t>(op.commutes_if_one));
  if (scale.empty()) return false;
  const Argument& head = scale.front();
  if (head.tag == Tag::kFloat) return head.number == 1;
  return (head.tag == Tag::kInt || head.tag == Tag::kBool) && head.integer == 1;
}

bool Lookahead::looks_alike(const SubPattern& sub, uint32_t wanted, ArgumentSpan found) {
  return compare(sub, wanted, found, nullptr) != Answer::kNo;
}

uint32_t Lookahead::first_mismatch(const SubPattern& sub, TermRange wanted, ArgumentSpan found,
                                   bool swapped) {
  uint32_t index = 0;
  size_t place = 0;
  for (uint32_t term = wanted.first; term < wanted.end; term += 1 + program_.term(term).extent) {
    const uint32_t partner = swapped && index < 2 ? 1 - index : index;
    const ArgumentSpan other = partner == index ? item_at(found, place) : item(found, partner);
    if (!looks_alike(sub, term, other)) return index;
    place += 1 + size_t{found[place].extent};
    ++index;
  }
  return index;
}

bool Lookahead::fits(const SubPattern& sub, uint32_t wanted, ArgumentSpan found) {
  Pairs agenda;
  Answer answer = compare(sub, wanted, found, &agenda);
  Pairs behind;
  while (!agenda.empty()) {
    const Pair pair = agenda.back();
    if (known_.contains(key(sub, pair))) {
      agenda.pop_back();
      continue;
    }
    behind.clear();
    const Answer known = nodes_fit(sub, pair, behind);
    if (known == Answer::kLater) {
      agenda.insert(agenda.end(), behind.begin(), behind.end());
    } else {
      known_[key(sub, pair)] = known == Answer::kYes;
    }
  }
  if (answer == Answer::kLater) answer = compare(sub, wanted, found, &behind);
  return answer != Answer::kNo;
}

// kLater: that depends on pairs that are not known yet, which are put into `behind`.
Lookahead::Answer Lookahead::nodes_fit(const SubPattern& sub, const Pair& pair, Pairs& behind) {
  const PatternNode& wanted = sub.nodes[pair.node];
  if (!graph_.pure(pair.found)) return Answer::kNo;
  if (wanted.argument_count != graph_.argument_count(pair.found)) return Answer::kNo;
  const ArgumentSpan found = graph_.arguments(pair.found);
  const Answer answer = orders_fit(sub, wanted.arguments, found, false, behind);
  if (answer == Answer::kYes || !commutes(graph_, pair.found)) return answer;
  return either(answer, orders_fit(sub, wanted.arguments, found, true, behind));
}

Lookahead::Answer Lookahead::orders_fit(const SubPattern& sub, TermRange wanted, ArgumentSpan found,
                                        bool swapped, Pairs& behind) {
  Answer answer = Answer::kYes;
  uint32_t index = 0;
  size_t place = 0;
  for (uint32_t term = wanted.first; term < wanted.end; term += 1 + program_.term(term).extent) {
    const uint32_t partner = swapped && index < 2 ? 1 - index : index;
    const ArgumentSpan other = partner == index ? item_at(found, place) : item(found, partner);
    place += 1 + size_t{found[place].extent};
    ++index;
    const Answer fits = compare(sub, term, other, &behind);
    if (fits == Answer::kNo) return fits;
    if (fits == Answer::kLater) answer = fits;
  }
  return answer;
}

Lookahead::Answer Lookahead::compare(const SubPattern& sub, uint32_t wanted, ArgumentSpan found,
                                     Pairs* behind) {
  const Term& term = program_.term(wanted);
  if (term.is_value()) return compare_value(sub, term, found, behind);
  if (!sub.pattern->attributes && term.plain && Predicates::is_plain(found)) return Answer::kYes;
  const auto answer = [](bool fits) { return fits ? Answer::kYes : Answer::kNo; };
  if (term.kind == Term::Kind::kConstant && behind == nullptr) {
    return answer(predicates_.is_constant(found.front()));
  }
  if (term.kind >= Term::Kind::kAny) return answer(compare_open(term, found));
  const Tag tag = found.front().tag;
  if (term.kind == Term::Kind::kNest) {
    if (term.host.tag != tag) return Answer::kNo;
    return tag == Tag::kList ? compare_list(sub, wanted, found, behind) : Answer::kYes;
  }
  if (tag == Tag::kValue || tag >= Tag::kList) return Answer::kNo;
  return answer(predicates_.same_leaf(term, found.front(), true));
}

Lookahead::Answer Lookahead::compare_list(const SubPattern& sub, uint32_t wanted,
                                          ArgumentSpan found, Pairs* behind) {
  const Term& list = program_.term(wanted);
  const uint32_t count = found.front().count;
  if (list.rest != kNoSlot) return list.host.count - 1 <= count ? Answer::kYes : Answer::kNo;
  if (list.host.count != count) return Answer::kNo;
  Answer answer = Answer::kYes;
  size_t place = 1;
  const uint32_t end = wanted + 1 + list.extent;
  for (uint32_t term = wanted + 1; term < end; term += 1 + program_.term(term).extent) {
    const ArgumentSpan other = item_at(found, place);
    place += other.size();
    const Answer fits = compare(sub, term, other, behind);
    if (fits == Answer::kNo) return fits;
    if (fits == Answer::kLater) answer = fits;
  }
  return answer;
}

Lookahead::Answer Lookahead::compare_value(const SubPattern& sub, const Term& wanted,
                                           ArgumentSpan found, Pairs* behind) {
  if (wanted.kind == Term::Kind::kChoice) {
    Answer answer = Answer::kNo;
    for (const uint32_t alternative : sub.choices[wanted.slot].alternatives) {
      answer = either(answer, compare(sub, alternative, found, behind));
    }
    return answer;
  }
  const Argument& head = found.front();
  if (head.tag != Tag::kValue) return Answer::kNo;
  if (wanted.kind == Term::Kind::kInput) return Answer::kYes;
  const PatternNode& node = sub.nodes[wanted.slot];
  if (node.type != graph_.type(head.value.node) || wanted.index != head.value.index) {
    return Answer::kNo;
  }
  if (node.is_constant) return Answer::kYes;
  const Pair pair = {wanted.slot, head.value.node};
  const auto known = known_.find(key(sub, pair));
  if (known != known_.end()) return known->second ? Answer::kYes : Answer::kNo;
  if (behind != nullptr) behind->push_back(pair);
  return Answer::kLater;
}

bool Lookahead::compare_open(const Term& wanted, ArgumentSpan found) const {
  if (wanted.kind == Term::Kind::kAny) {
    return predicates_.fits_any(program_.any(wanted), found, true);
  }
  if (wanted.kind == Term::Kind::kConstant) {
    return predicates_.mismatch(program_.constant(wanted), found.front()) ==
           Predicates::Mismatch::kNone;
  }
  const Argument& head = found.front();
  return head.tag == Tag::kList && Predicates::all_values(&head + 1, head.count) &&
         Predicates::fits_length(*program_.variadic(wanted).what, head.count);
}

Lookahead::Answer Lookahead::either(Answer one, Answer other) {
  if (one == Answer::kYes || other == Answer::kYes) return Answer::kYes;
  return one == Answer::kLater || other == Answer::kLater ? Answer::kLater : Answer::kNo;
}

}  // namespace bringup::engine
