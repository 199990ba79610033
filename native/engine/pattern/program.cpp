#include "engine/pattern/program.h"

#include <algorithm>
#include <set>

#include "engine/graph/text.h"

namespace bringup::engine {
namespace {

std::set<StringId> names_of(const Pattern& pattern) {
  std::set<StringId> names;
  for (const auto& [number, open] : pattern.open) {
    names.insert(std::visit([](const auto& what) { return what.name; }, open.what));
  }
  for (const auto& [value, constraint] : pattern.constraints) {
    for (const DimPattern& dim : constraint.shape.value_or(std::vector<DimPattern>())) {
      if (dim.kind == DimPattern::Kind::kName) names.insert(dim.name);
    }
  }
  for (const auto& [node, name] : pattern.choices) names.insert(name);
  for (const auto& [name, value] : pattern.captured_names) names.insert(name);
  names.erase(kEmptyString);
  return names;
}

uint32_t slot_of(std::vector<StringId>& table, StringId name) {
  const auto found = std::find(table.begin(), table.end(), name);
  const auto slot = static_cast<uint32_t>(found - table.begin());
  if (found == table.end()) table.push_back(name);
  return slot;
}

bool everywhere(uint32_t) { return true; }

}  // namespace

class Compiler {
 public:
  explicit Compiler(Program& program) : program_(program) {}

  void run() {
    add(*program_.pattern_, kNoSlot);
    find_anchors();
    program_.required_ = program_.nodes_behind(program_.root().outputs, false, everywhere);
  }

 private:
  SubPattern& sub(uint32_t number) { return program_.subs_[number]; }

  // The number of the new sub-pattern.
  uint32_t add(const Pattern& pattern, uint32_t parent) {
    constexpr size_t kMost = 64;  // patterns within patterns
    if (program_.subs_.size() == kMost) {
      throw_error(ErrorCode::kPass, "pattern ", in_quotes(program_.pattern_->name),
                  " has more than 64 lists of patterns");
    }
    check_pattern(pattern);
    const auto number = static_cast<uint32_t>(program_.subs_.size());
    program_.subs_.push_back({});
    names_.push_back(names_of(pattern));
    sub(number).pattern = &pattern;
    sub(number).parent = parent;
    give_slots(number);
    for (const auto& [value, constraint] : pattern.constraints) {
      add_constraint(number, value, constraint);
    }
    for (uint32_t i = 0; i < sub(number).nodes.size(); ++i) fill_node(number, i);
    for (uint32_t i = 0; i < sub(number).choices.size(); ++i) fill_choice(number, i);
    add_edges(number);
    for (const ValueId output : pattern.graph->outputs()) {
      const Argument argument = Argument::of_value(output);
      sub(number).outputs.push_back(add_item(number, {&argument, 1}));
    }
    return number;
  }

  void give_slots(uint32_t number) {
    const Graph& graph = *sub(number).pattern->graph;
    static const StringId one_of = Strings::intern(kOneOf);
    SubPattern& made = sub(number);
    made.first_node = node_count_;
    std::vector<uint32_t>& slots = slots_.emplace_back(graph.end(), kNoSlot);
    for (NodeId node = graph.first(); node != kNoNode; node = graph.next(node)) {
      const StringId type = graph.type(node);
      if (node == graph.last()) continue;
      if (type == Operators::input()->type) {
        slots[node] = static_cast<uint32_t>(made.inputs.size());
        made.inputs.push_back({node, 0});
      } else if (type == one_of) {
        slots[node] = static_cast<uint32_t>(made.choices.size());
        made.choices.push_back({node, {}});
      } else {
        slots[node] = static_cast<uint32_t>(made.nodes.size());
        made.nodes.push_back({});
        made.nodes.back().id = node;
      }
    }
    node_count_ += static_cast<uint32_t>(made.nodes.size());
  }

  void add_constraint(uint32_t number, ValueId value, const TensorConstraint& constraint) {
    CompiledConstraint compiled;
    compiled.what = &constraint;
    for (const DimPattern& dim : constraint.shape.value_or(std::vector<DimPattern>())) {
      const bool named = dim.kind == DimPattern::Kind::kName;
      compiled.names.push_back(named ? place(number, dim.name, &SubPattern::sizes) : NamePlace());
    }
    sub(number).constraints.emplace(value, std::move(compiled));
  }

  // A name belongs to the outermost pattern around that has it too.
  NamePlace place(uint32_t number, StringId name, std::vector<StringId> SubPattern::*table) {
    if (name == kEmptyString) return {};
    uint32_t hops = 0;
    uint32_t owner = number;
    uint32_t steps = 0;
    for (uint32_t at = sub(number).parent; at != kNoSlot; at = sub(at).parent) {
      ++steps;
      if (!names_[at].contains(name)) continue;
      owner = at;
      hops = steps;
    }
    return {hops, slot_of(sub(owner).*table, name)};
  }

  void fill_node(uint32_t number, uint32_t slot) {
    const Pattern& pattern = *sub(number).pattern;
    const Graph& graph = *pattern.graph;
    PatternNode made = sub(number).nodes[slot];
    made.type = graph.type(made.id);
    made.output_count = graph.output_count(made.id);
    made.argument_count = graph.argument_count(made.id);
    made.is_constant = made.type == Operators::constant()->type;
    if (made.is_constant && pattern.constant_values) made.data = graph.payload(made.id);
    for (uint32_t i = 0; i < made.output_count; ++i) {
      made.is_constrained |= sub(number).constraint({made.id, i}) != nullptr;
    }
    made.arguments = add_run(number, graph.arguments(made.id));
    made.keywords = add_run(number, graph.keywords(made.id));
    mark_scalars(made, graph.op(made.id));
    for (const TermRange& range : {made.arguments, made.keywords}) {
      for (uint32_t i = range.first; i < range.end; ++i) {
        if (program_.terms_[i].is_value()) made.inputs.push_back(i);
      }
    }
    sub(number).nodes[slot] = std::move(made);
  }

  // Parameters of type Scalar, which take a number of either kind.
  void mark_scalars(const PatternNode& node, const Operator& op) {
    static const StringId scalar = Strings::intern("number");
    static const StringId optional = Strings::intern("Optional[number]");
    size_t position = 0;
    for (uint32_t i = node.arguments.first; i < node.arguments.end; ++position) {
      Term& term = program_.terms_[i];
      i += 1 + term.extent;
      if (position >= op.parameters.size()) return;
      const StringId type = op.parameters[position].type;
      if (type != scalar && type != optional) continue;
      term.is_scalar = true;
      if (term.kind != Term::Kind::kAny) continue;
      for (const uint32_t one : program_.any(term).among) program_.terms_[one].is_scalar = true;
    }
  }

  void fill_choice(uint32_t number, uint32_t slot) {
    const Graph& graph = *sub(number).pattern->graph;
    const ArgumentSpan run = graph.arguments(sub(number).choices[slot].id);
    std::vector<uint32_t> alternatives;
    for (size_t i = 0; i < run.size(); i += 1 + size_t{run[i].extent}) {
      alternatives.push_back(add_item(number, item_at(run, i)));
    }
    sub(number).choices[slot].alternatives = std::move(alternatives);
  }

  void add_edges(uint32_t number) {
    const Graph& graph = *sub(number).pattern->graph;
    if (!graph.has_control_edges()) return;
    for (NodeId node = graph.first(); node != kNoNode; node = graph.next(node)) {
      for (const NodeId source : graph.control_inputs(node)) {
        const bool from_input = graph.type(source) == Operators::input()->type;
        sub(number).edges.push_back({from_input, slots_[number][source], slots_[number][node]});
      }
    }
  }

  // Terms of one run stand side by side; what an open argument needs is added after them.
  TermRange add_run(uint32_t number, ArgumentSpan run) {
    const auto first = static_cast<uint32_t>(program_.terms_.size());
    for (const Argument& argument : run) program_.terms_.push_back(term_of(number, argument));
    const auto end = static_cast<uint32_t>(program_.terms_.size());
    for (uint32_t i = end; i-- > first;) finish(i);
    for (uint32_t i = first; i < end; ++i) {
      if (run[i - first].tag == Tag::kOpaque) open_term(number, i, run[i - first].id);
    }
    return {first, end};
  }

  uint32_t add_item(uint32_t number, ArgumentSpan item) { return add_run(number, item).first; }

  Term term_of(uint32_t number, const Argument& argument) {
    const SubPattern& made = sub(number);
    const Graph& graph = *made.pattern->graph;
    Term term;
    term.host = argument;
    term.extent = argument.extent;
    if (argument.is_nest()) {
      term.kind = Term::Kind::kNest;
    } else if (argument.tag == Tag::kValue) {
      static const StringId one_of = Strings::intern(kOneOf);
      const StringId type = graph.type(argument.value.node);
      term.kind = type == Operators::input()->type ? Term::Kind::kInput
                  : type == one_of                 ? Term::Kind::kChoice
                                                   : Term::Kind::kNode;
      term.slot = slots_[number][argument.value.node];
      term.index = argument.value.index;
      term.value = argument.value;
      term.plain = false;
    } else if (argument.tag == Tag::kOpaque) {
      const auto found = made.pattern->open.find(argument.id);
      if (found != made.pattern->open.end()) {
        term.kind = static_cast<Term::Kind>(static_cast<size_t>(Term::Kind::kAny) +
                                            found->second.what.index());
        term.plain = false;
      }
    }
    return term;
  }

  // What a nest has in it; the terms after it are finished.
  void finish(uint32_t index) {
    Term& term = program_.terms_[index];
    if (term.kind != Term::Kind::kNest) return;
    uint32_t item = 0;
    for (uint32_t i = index + 1; i <= index + term.extent; ++item) {
      const Term& inside = program_.terms_[i];
      term.plain = term.plain && inside.plain;
      const bool is_open = term.host.tag == Tag::kList && inside.kind == Term::Kind::kVariadic;
      if (is_open && term.rest != kNoSlot) {
        throw_error(ErrorCode::kPass, "two lists of open length in one list");
      }
      if (is_open) term.rest = item;
      i += 1 + inside.extent;
    }
  }

  void open_term(uint32_t number, uint32_t index, uint32_t object) {
    const Pattern& pattern = *sub(number).pattern;
    const Term::Kind kind = program_.terms_[index].kind;
    uint32_t slot = kNoSlot;
    if (kind == Term::Kind::kHost) {
      slot = static_cast<uint32_t>(program_.objects_.size());
      program_.objects_.push_back({pattern.graph.get(), object});
    } else {
      const OpenArgument& open = pattern.open.at(object);
      slot = kind == Term::Kind::kAny        ? add_any(number, open)
             : kind == Term::Kind::kConstant ? add_constant(number, open)
                                             : add_variadic(number, open);
    }
    program_.terms_[index].slot = slot;
  }

  uint32_t add_any(uint32_t number, const OpenArgument& open) {
    CompiledAny made;
    made.what = &std::get<AnyArgument>(open.what);
    made.text = &open.text;
    made.name = place(number, made.what->name, &SubPattern::names);
    if (made.what->among) {
      for (const ArgumentList& item : *made.what->among) {
        made.among.push_back(add_item(number, item.items()));
      }
    }
    program_.any_.push_back(std::move(made));
    return static_cast<uint32_t>(program_.any_.size() - 1);
  }

  uint32_t add_constant(uint32_t number, const OpenArgument& open) {
    const auto* what = &std::get<ConstantArgument>(open.what);
    program_.constants_.push_back(
        {what, &open.text, place(number, what->name, &SubPattern::names)});
    return static_cast<uint32_t>(program_.constants_.size() - 1);
  }

  uint32_t add_variadic(uint32_t number, const OpenArgument& open) {
    CompiledVariadic made;
    made.what = &std::get<VariadicArgument>(open.what);
    made.text = &open.text;
    if (made.what->each != nullptr) {
      if (made.what->each->graph->outputs().size() != 1) {
        throw_error(ErrorCode::kPass, "each item of a list must have one output");
      }
      made.list = slot_of(sub(number).lists, made.what->name);
      made.each = add(*made.what->each, number);
    } else {
      made.name = place(number, made.what->name, &SubPattern::names);
    }
    program_.variadics_.push_back(made);
    return static_cast<uint32_t>(program_.variadics_.size() - 1);
  }

  void find_anchors() {
    struct Step {
      uint32_t term;
      std::vector<Decision> decisions;
    };
    std::vector<Step> agenda = {{program_.root().outputs.front(), {}}};
    while (!agenda.empty()) {
      const Step step = std::move(agenda.back());
      agenda.pop_back();
      const Term& term = program_.terms_[step.term];
      if (term.kind == Term::Kind::kNode) add_anchor({step.decisions, term.slot});
      if (term.kind != Term::Kind::kChoice) continue;  // an input: nothing there can be replaced
      const auto& alternatives = program_.root().choices[term.slot].alternatives;
      for (auto i = static_cast<uint32_t>(alternatives.size()); i-- > 0;) {
        agenda.push_back({alternatives[i], step.decisions});
        agenda.back().decisions.push_back({term.slot, i});
      }
    }
  }

  void add_anchor(Anchor anchor) {
    const StringId type = program_.root().nodes[anchor.node].type;
    anchor.reached = reached_by(program_.root().nodes[anchor.node].arguments);
    std::vector<StringId>& types = program_.anchor_types_;
    if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
    program_.anchors_.push_back(std::move(anchor));
  }

  // Arguments are compared in their order, and so are the items of a list.
  std::vector<uint32_t> reached_by(const TermRange& arguments) const {
    std::vector<uint32_t> terms, counts;
    const auto reached = [&] {
      return static_cast<uint32_t>(1 + program_.nodes_behind(terms, true, everywhere).size());
    };
    for (uint32_t i = arguments.first; i < arguments.end; i += 1 + program_.terms_[i].extent) {
      const Term& term = program_.terms_[i];
      if (term.kind != Term::Kind::kNest) counts.push_back(reached());
      for (uint32_t k = 0; k <= term.extent; ++k) terms.push_back(i + k);
      if (term.kind == Term::Kind::kNest) counts.push_back(reached());
    }
    return counts;
  }

  Program& program_;
  std::vector<std::set<StringId>> names_;
  std::vector<std::vector<uint32_t>> slots_;
  uint32_t node_count_ = 0;
};

std::shared_ptr<const Program> Program::compile(std::shared_ptr<const Pattern> pattern) {
  auto program = std::make_shared<Program>();
  program->pattern_ = std::move(pattern);
  Compiler(*program).run();
  return program;
}

std::vector<uint32_t> Program::nodes_behind(std::span<const uint32_t> terms, bool through_choices,
                                            const std::function<bool(uint32_t)>& enter) const {
  std::vector<uint32_t> nodes;
  std::vector<bool> seen(root().nodes.size()), opened(root().choices.size());
  std::vector<uint32_t> agenda(terms.begin(), terms.end());
  while (!agenda.empty()) {
    const Term& term = terms_[agenda.back()];
    agenda.pop_back();
    if (term.kind == Term::Kind::kChoice && through_choices && !opened[term.slot]) {
      opened[term.slot] = true;
      for (const uint32_t first : root().choices[term.slot].alternatives) {
        for (uint32_t k = 0; k <= terms_[first].extent; ++k) agenda.push_back(first + k);
      }
    }
    if (term.kind != Term::Kind::kNode || seen[term.slot] || !enter(term.slot)) continue;
    seen[term.slot] = true;
    nodes.push_back(term.slot);
    const std::vector<uint32_t>& inputs = root().nodes[term.slot].inputs;
    agenda.insert(agenda.end(), inputs.begin(), inputs.end());
  }
  return nodes;
}

}  // namespace bringup::engine
