// What remains to be compared so that an argument or node of the pattern fits one of the graph.
#include <algorithm>

#include "engine/graph/text.h"
#include "engine/match/matcher.h"
#include "engine/match/matcher_refusal.h"

namespace bringup::engine {

void Matcher::compare(const Goal& goal) {
  switch (goal.kind) {
    case Goal::Kind::kDecide:
      bound_.set_choice(goal.frame, goal.wanted, goal.count);
      return end_alternative();
    case Goal::Kind::kBind:
      return bind_node(goal);
    case Goal::Kind::kKeywords:
      return compare_keywords(goal);
    case Goal::Kind::kRun:
      return compare_variadic(goal, goal.found, goal.count, true);
    case Goal::Kind::kTerm:
      return compare_term(goal);
  }
}

void Matcher::compare_term(const Goal& goal) {
  const Term& term = program_->term(goal.wanted);
  const ArgumentSpan found(goal.found, 1 + size_t{goal.found->extent});
  const Captured captured = {goal.found, 1, false, true};
  if (term.is_value()) return compare_value(goal);
  if (term.kind == Term::Kind::kAny) {
    const CompiledAny& any = program_->any(term);
    const auto fits = [&](bool any_kind) { return predicates_.fits_any(any, found, any_kind); };
    if (!fits_kind(goal, fits)) return differs(goal);
    return bind_name(goal, any.name, captured, *any.text);
  }
  if (term.kind == Term::Kind::kConstant) {
    const CompiledConstant& constant = program_->constant(term);
    if (predicates_.mismatch(constant, *goal.found) == Predicates::Mismatch::kNone) {
      return bind_name(goal, constant.name, captured, *constant.text);
    }
    return refuse_with(goal.node, [&] { return predicates_.refusal(constant, *goal.found); });
  }
  if (term.kind == Term::Kind::kVariadic) {
    const bool is_list = goal.found->tag == Tag::kList;
    return compare_variadic(goal, goal.found + 1, is_list ? goal.found->count : 0, is_list);
  }
  compare_host(goal);
}

// Whether a host argument fits, at last with a number of the other kind where the call takes both.
template <class Fits>
bool Matcher::fits_kind(const Goal& goal, const Fits& fits) const {
  if (fits(false)) return true;
  const bool is_scalar = program_->term(goal.wanted).is_scalar;
  return is_scalar && fits(true) && predicates_.takes_any_kind(goal.node);
}

void Matcher::compare_host(const Goal& goal) {
  const Term& term = program_->term(goal.wanted);
  const ArgumentSpan found(goal.found, 1 + size_t{goal.found->extent});
  const bool ignored = !bound_.sub(goal.frame).pattern->attributes && term.plain;
  if (ignored && Predicates::is_plain(found)) return end_alternative();
  if (term.kind == Term::Kind::kNest) return compare_nest(goal);
  const bool host = goal.found->tag != Tag::kValue && !goal.found->is_nest();
  const auto same = [&](bool any_kind) {
    return predicates_.same_leaf(term, *goal.found, any_kind);
  };
  if (!host || !fits_kind(goal, same)) return differs(goal);
  end_alternative();
}

void Matcher::compare_nest(const Goal& goal) {
  const Term& term = program_->term(goal.wanted);
  if (term.host.tag != goal.found->tag) return differs(goal);
  if (term.host.tag == Tag::kList) return compare_list(goal);
  if (term.host.count != goal.found->count) return differs(goal);
  if (term.host.tag == Tag::kSlice) {
    compare_items(goal, goal.wanted + 1, goal.found + 1);
    return end_alternative();
  }
  uint32_t wanted = goal.wanted + 1;
  const Argument* found = goal.found + 1;
  for (uint32_t i = 0; i < term.host.count; ++i) {
    const bool is_key = i % 2 == 0;
    if (is_key && !predicates_.same_plain(wanted, {found, 1 + size_t{found->extent}})) {
      goals_.clear();
      return differs(goal);
    }
    if (!is_key) put({Goal::Kind::kTerm, goal.frame, wanted, 0, found, goal.node});
    wanted += 1 + program_->term(wanted).extent;
    found += 1 + size_t{found->extent};
  }
  end_alternative();
}

// One goal for each item of a nest of the pattern, whose partners stand side by side.
void Matcher::compare_items(const Goal& goal, uint32_t term, const Argument* found) {
  const uint32_t end = goal.wanted + 1 + program_->term(goal.wanted).extent;
  for (; term < end; term += 1 + program_->term(term).extent) {
    put({Goal::Kind::kTerm, goal.frame, term, 0, found, goal.node});
    found += 1 + size_t{found->extent};
  }
}

void Matcher::compare_list(const Goal& goal) {
  const Term& list = program_->term(goal.wanted);
  const uint32_t wanted = list.host.count;
  const uint32_t count = goal.found->count;
  if (list.rest == kNoSlot) {
    if (wanted != count) return differs(goal);
    compare_items(goal, goal.wanted + 1, goal.found + 1);
    return end_alternative();
  }
  if (wanted - 1 > count) return differs(goal);
  const uint32_t left = count - (wanted - 1);
  uint32_t term = goal.wanted + 1;
  const Argument* found = goal.found + 1;
  for (uint32_t i = 0; i < wanted; ++i, term += 1 + program_->term(term).extent) {
    const uint32_t items = i == list.rest ? left : 1;
    const auto kind = i == list.rest ? Goal::Kind::kRun : Goal::Kind::kTerm;
    put({kind, goal.frame, term, items, found, goal.node});
    for (uint32_t k = 0; k < items; ++k) found += 1 + size_t{found->extent};
  }
  end_alternative();
}

void Matcher::compare_value(const Goal& goal) {
  const Term& term = program_->term(goal.wanted);
  if (term.kind == Term::Kind::kChoice) return compare_choice(goal);
  if (goal.found->tag != Tag::kValue) {
    return refuse_with(goal.node, [&] {
      return Refusal{"an argument is not a tensor", term_text(goal.frame, goal.wanted),
                     found_text(goal.found)};
    });
  }
  if (term.kind == Term::Kind::kInput) return compare_input(goal);
  const ValueId found = goal.found->value;
  if (term.index != found.index) {
    return refuse_with(found.node, [&] {
      return Refusal{"another output of the node is read", std::to_string(term.index),
                     std::to_string(found.index)};
    });
  }
  bind_node({Goal::Kind::kBind, goal.frame, term.slot, 0, nullptr, found.node});
}

void Matcher::compare_input(const Goal& goal) {
  const Term& term = program_->term(goal.wanted);
  const ValueId found = goal.found->value;
  const ValueId known = bound_.input(goal.frame, term.slot);
  if (known.node == kNoNode) {
    if (!is_as_stated(goal.frame, term.value, found)) return;
    if (!has_control_edges(goal.frame, true, term.slot, found.node)) return;
    bound_.set_input(goal.frame, term.slot, found);
  } else if (!(known == found)) {
    return refuse_with(goal.node, [&] {
      return Refusal{concat("input ", in_quotes(pattern_value(goal.frame, term.value)),
                            " of the pattern is another value"),
                     concat("%", value_name(graph_, known)),
                     concat("%", value_name(graph_, found))};
    });
  }
  end_alternative();
}

void Matcher::compare_choice(const Goal& goal) {
  const Term& term = program_->term(goal.wanted);
  const PatternChoice& choice = bound_.sub(goal.frame).choices[term.slot];
  const bool is_value = goal.found->tag == Tag::kValue;
  if (is_value && !is_as_stated(goal.frame, term.value, goal.found->value)) return;
  Goal next = goal;
  const uint32_t taken = bound_.choice(goal.frame, term.slot);
  if (taken != kNoSlot) {
    next.wanted = choice.alternatives[taken];
    put(next);
    return end_alternative();
  }
  for (const uint32_t i : fitting_alternatives(goal, choice)) {
    put({Goal::Kind::kDecide, goal.frame, term.slot, i, nullptr, goal.node});
    next.wanted = choice.alternatives[i];
    put(next);
    end_alternative();
  }
}

// Those that can fit; none after a refusal.
std::vector<uint32_t> Matcher::fitting_alternatives(const Goal& goal, const PatternChoice& choice) {
  const ArgumentSpan found(goal.found, 1 + size_t{goal.found->extent});
  std::vector<uint32_t> fitting;
  for (uint32_t i = 0; i < choice.alternatives.size(); ++i) {
    if (plausible(goal.frame, choice.alternatives[i], found)) fitting.push_back(i);
  }
  if (fitting.empty()) refuse_alternatives(goal, choice);
  if (fitting.size() < 2) return fitting;
  std::vector<uint32_t> likely;
  for (const uint32_t i : fitting) {
    if (ahead_.fits(bound_.sub(goal.frame), choice.alternatives[i], found)) likely.push_back(i);
  }
  return likely.empty() ? std::vector<uint32_t>{fitting.front()} : likely;
}

void Matcher::refuse_alternatives(const Goal& goal, const PatternChoice& choice) {
  refuse_with(goal.node, [&] {
    std::vector<std::string> shown;
    for (const uint32_t item : choice.alternatives) {
      const Term& alternative = program_->term(item);
      const bool computed = alternative.is_value() && alternative.kind != Term::Kind::kInput;
      shown.push_back(computed ? type_text(pattern_graph(goal.frame), alternative.value.node)
                               : term_text(goal.frame, item));
    }
    const bool is_value = goal.found->tag == Tag::kValue;
    return Refusal{"none of the alternatives fits", any_of_text(shown),
                   is_value ? type_text(graph_, goal.found->value.node) : found_text(goal.found)};
  });
}

void Matcher::compare_variadic(const Goal& goal, const Argument* items, uint32_t count,
                               bool is_list) {
  const CompiledVariadic& variadic = program_->variadic(program_->term(goal.wanted));
  if (!is_list || !Predicates::all_values(items, count)) {
    return refuse_with(goal.node, [&] {
      const bool is_run = goal.kind == Goal::Kind::kRun;
      return Refusal{"an argument is not a list of values", *variadic.text,
                     is_run ? run_text(items, count) : found_text(goal.found)};
    });
  }
  if (!Predicates::fits_length(*variadic.what, count)) {
    return refuse_with(goal.node, [&] {
      return Refusal{"a list has another length", *variadic.text, concat(count, " values")};
    });
  }
  if (variadic.each != kNoSlot) return compare_each(goal, items, count);
  bind_name(goal, variadic.name, {items, count, true, true}, *variadic.text);
}

// Every value of a list, each once, against the pattern of its own.
void Matcher::compare_each(const Goal& goal, const Argument* items, uint32_t count) {
  const CompiledVariadic& variadic = program_->variadic(program_->term(goal.wanted));
  const ListBinding& known = bound_.list(goal.frame, variadic.list);
  if (known.bound) {
    const bool alike = known.count == count && same({known.first, count}, {items, count});
    if (alike) return end_alternative();
    return refuse_with(goal.node, [&] {
      return Refusal{*variadic.text + " is another argument", run_text(known.first, known.count),
                     run_text(items, count)};
    });
  }
  ListBinding made;
  made.first = items;
  made.count = count;
  std::unordered_map<ValueId, uint32_t> frames;
  for (uint32_t i = 0; i < count; ++i) {
    const auto [place, is_new] = frames.try_emplace(items[i].value, 0);
    if (is_new) {
      place->second = bound_.add_frame(variadic.each, goal.frame);
      const uint32_t output = program_->subs()[variadic.each].outputs.front();
      put({Goal::Kind::kTerm, place->second, output, 0, items + i, goal.node});
    }
    made.frames.push_back(place->second);
  }
  bound_.set_list(goal.frame, variadic.list, std::move(made));
  end_alternative();
}

// What an open argument stands for: the same wherever its name stands.
void Matcher::bind_name(const Goal& goal, NamePlace place, Captured captured,
                        const std::string& text) {
  if (place.slot == kNoSlot) return end_alternative();
  const uint32_t frame = bound_.scope(goal.frame, place.hops);
  const Captured& known = bound_.name(frame, place.slot);
  if (!known.bound) {
    bound_.set_name(frame, place.slot, captured);
  } else if (known.is_list != captured.is_list || known.count != captured.count ||
             !same(known.span(), captured.span())) {
    return refuse_with(goal.node, [&] {
      const auto shown = [&](const Captured& item) {
        return item.is_list ? run_text(item.first, item.count) : found_text(item.first);
      };
      return Refusal{text + " is another argument", shown(known), shown(captured)};
    });
  }
  end_alternative();
}

// Nodes

void Matcher::bind_node(const Goal& goal) {
  const NodeId target = goal.node;
  const PatternNode& wanted = bound_.sub(goal.frame).nodes[goal.wanted];
  const NodeId known = bound_.node(goal.frame, goal.wanted);
  if (known != kNoNode) {
    if (known == target) return end_alternative();
    return refuse_with(target, [&] {
      return Refusal{"another node is needed", node_text(graph_, known), node_text(graph_, target)};
    });
  }
  if (wanted.type != graph_.type(target)) {
    return refuse_with(target, [&] {
      return Refusal{"another operator", std::string(Strings::text(wanted.type)),
                     type_text(graph_, target)};
    });
  }
  if (wanted.is_constant) return bind_constant(goal, wanted);
  if (!is_free(goal, wanted) || !may_stand_for(goal, wanted)) return;
  for (uint32_t i = 0; wanted.is_constrained && i < wanted.output_count; ++i) {
    if (!is_as_stated(goal.frame, {wanted.id, i}, {target, i})) return;
  }
  if (!has_control_edges(goal.frame, false, goal.wanted, target)) return;
  bound_.set_node(goal.frame, goal.wanted, target);
  order_arguments(goal, wanted);
}

// Whether no other node of the pattern stands for this one.
bool Matcher::is_free(const Goal& goal, const PatternNode& wanted) {
  const uint32_t other = bound_.taken().find(goal.node);
  if (other == kNoSlot || other == bound_.sub(goal.frame).first_node + goal.wanted) return true;
  refuse_with(goal.node, [&] {
    const auto holder =
        std::find_if(program_->subs().begin(), program_->subs().end(), [&](const SubPattern& one) {
          return other >= one.first_node && other - one.first_node < one.nodes.size();
        });
    return Refusal{
        "one node would stand for two of the pattern",
        node_text(pattern_graph(goal.frame), wanted.id),
        node_text(*holder->pattern->graph, holder->nodes[other - holder->first_node].id)};
  });
  return false;
}

// Whether a call may be replaced, and has as many arguments and outputs as are needed.
bool Matcher::may_stand_for(const Goal& goal, const PatternNode& wanted) {
  const NodeId target = goal.node;
  if (!graph_.pure(target)) {
    refuse_with(target, [] {
      return Refusal{"the operator writes memory or is random, so it is never replaced"};
    });
    return false;
  }
  if (wanted.output_count > graph_.output_count(target) ||
      wanted.argument_count != graph_.argument_count(target)) {
    refuse_with(target, [&] {
      return Refusal{"the call has another form", node_text(pattern_graph(goal.frame), wanted.id),
                     node_text(graph_, target)};
    });
    return false;
  }
  return true;
}

void Matcher::bind_constant(const Goal& goal, const PatternNode& wanted) {
  if (predicates_.data_mismatch(wanted, goal.node) != Predicates::DataMismatch::kNone) {
    return refuse_with(goal.node, [&] {
      return predicates_.data_refusal(pattern_graph(goal.frame), wanted, goal.node);
    });
  }
  if (!is_as_stated(goal.frame, {wanted.id, 0}, {goal.node, 0})) return;
  bound_.set_node(goal.frame, goal.wanted, goal.node);
  end_alternative();
}

void Matcher::order_arguments(const Goal& goal, const PatternNode& wanted) {
  const ArgumentSpan found = graph_.arguments(goal.node);
  if (wanted.argument_count < 2 || !commutes(graph_, goal.node)) {
    return put_arguments(goal, wanted, false);
  }
  const SubPattern& sub = bound_.sub(goal.frame);
  const uint32_t first = wanted.arguments.first;
  const uint32_t second = first + 1 + program_->term(first).extent;
  const ArgumentSpan left = item_at(found, 0);
  const ArgumentSpan right = item_at(found, left.size());
  bool straight = plausible(goal.frame, first, left) && plausible(goal.frame, second, right);
  bool swapped = plausible(goal.frame, first, right) && plausible(goal.frame, second, left);
  if (straight && swapped) {
    straight = ahead_.fits(sub, first, left) && ahead_.fits(sub, second, right);
    swapped = ahead_.fits(sub, first, right) && ahead_.fits(sub, second, left);
  }
  if (straight || !swapped) put_arguments(goal, wanted, false);
  if (swapped) put_arguments(goal, wanted, true);
}

// One alternative: all arguments, the first two exchanged if `swapped`.
void Matcher::put_arguments(const Goal& goal, const PatternNode& wanted, bool swapped) {
  const ArgumentSpan found = graph_.arguments(goal.node);
  const Argument* at = found.data();
  const size_t start = goals_.size();
  for (uint32_t term = wanted.arguments.first; term < wanted.arguments.end;
       term += 1 + program_->term(term).extent) {
    put({Goal::Kind::kTerm, goal.frame, term, 0, at, goal.node});
    at += 1 + size_t{at->extent};
  }
  if (swapped) std::swap(goals_[start].found, goals_[start + 1].found);
  const bool has_keywords = wanted.keywords.first != wanted.keywords.end;
  if (has_keywords || !graph_.keywords(goal.node).empty()) {
    Goal keywords = goal;
    keywords.kind = Goal::Kind::kKeywords;
    put(keywords);
  }
  end_alternative();
}

void Matcher::compare_keywords(const Goal& goal) {
  const PatternNode& wanted = bound_.sub(goal.frame).nodes[goal.wanted];
  const ArgumentSpan found = graph_.keywords(goal.node);
  const bool has_keywords = wanted.keywords.first != wanted.keywords.end;
  if (has_keywords && !found.empty()) {
    return compare_term(
        {Goal::Kind::kTerm, goal.frame, wanted.keywords.first, 0, found.data(), goal.node});
  }
  refuse_with(goal.node, [&] {
    return Refusal{"an argument differs",
                   has_keywords ? term_text(goal.frame, wanted.keywords.first) : "{}",
                   found.empty() ? "{}" : found_text(found.data())};
  });
}

// A cheap look at the two ends of an argument, to leave out what cannot fit.
bool Matcher::plausible(uint32_t frame, uint32_t term, ArgumentSpan found) {
  if (program_->term(term).is_value()) {
    const std::optional<ValueId> known = bound_.resolve(frame, term);
    if (known) return found.front().tag == Tag::kValue && found.front().value == *known;
  }
  return ahead_.looks_alike(bound_.sub(frame), term, found);
}

void Matcher::differs(const Goal& goal) {
  refuse_with(goal.node, [&] {
    return Refusal{"an argument differs", term_text(goal.frame, goal.wanted),
                   found_text(goal.found)};
  });
}

}  // namespace bringup::engine
