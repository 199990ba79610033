#include "engine/pattern/pattern_elements.h"

#include <algorithm>
#include <limits>
#include <map>

#include "engine/graph/text.h"
#include "engine/util/handle_number.h"

namespace bringup::engine {
namespace {

// "name(a, b)" of what is stated.
std::string call_text(std::string_view function, const std::vector<std::string>& stated) {
  std::string text = concat(function, "(");
  for (const std::string& item : stated) {
    if (text.back() != '(') text += ", ";
    text += item;
  }
  text += ")";
  return text;
}

std::string kinds_text(uint32_t kinds) {
  std::string text;
  for (const auto& [name, kind] : kKindNames) {
    if ((kinds & bit_of(kind)) == 0) continue;
    if (!text.empty()) text += "|";
    text += name;
  }
  return text;
}

std::string number_text(const ConstantArgument::Number& number) {
  return number.is_whole ? std::to_string(number.whole) : float_text(number.real);
}

std::string elements_text(const ConstantArgument& piece) {
  constexpr size_t kShown = 8;
  if (!piece.sizes) return number_text(piece.values.front());
  std::string text = "[";
  for (size_t index = 0; index < std::min(piece.values.size(), kShown); ++index) {
    if (index != 0) text += ", ";
    text += number_text(piece.values[index]);
  }
  text += piece.values.size() > kShown ? ", ...]" : "]";
  return text;
}

// The names that a pattern gives, and what each stands for.
class Claims {
 public:
  explicit Claims(const Pattern& pattern) : pattern_(pattern) {}

  // What every name of the pattern stands for; EngineError(kPass) when one stands for two things.
  std::map<StringId, std::string_view> run() {
    for (const auto& [number, open] : pattern_.open) {
      const bool is_list = std::holds_alternative<VariadicArgument>(open.what);
      claim(std::visit([](const auto& what) { return what.name; }, open.what),
            is_list ? "a list of values" : "an argument");
    }
    for (const auto& [value, constraint] : pattern_.constraints) {
      for (const DimPattern& dim : constraint.shape.value_or(std::vector<DimPattern>())) {
        if (dim.kind == DimPattern::Kind::kName) claim(dim.name, "a size");
      }
    }
    for (const auto& [name, value] : pattern_.captured_names) claim(name, "a capture");
    for (const auto& [node, name] : pattern_.choices) {
      if (known_.contains(name) && known_[name] == kChoice) refuse(name, "two choices");
      claim(name, kChoice);
    }
    return std::move(known_);
  }

 private:
  static constexpr std::string_view kChoice = "a choice";

  void claim(StringId name, std::string_view kind) {
    if (name == kEmptyString) return;
    const std::string_view known = known_.try_emplace(name, kind).first->second;
    if (known != kind) refuse(name, concat(known, " and for ", kind));
  }

  [[noreturn]] void refuse(StringId name, std::string_view what) const {
    throw_error(ErrorCode::kPass, "the name ", in_quotes(Strings::text(name)), " stands for ", what,
                " in pattern ", in_quotes(pattern_.name));
  }

  const Pattern& pattern_;
  std::map<StringId, std::string_view> known_;
};

const Operator* own_operator(std::string_view type) {
  Operator op;
  op.type = Strings::intern(type);
  op.output_count = 1;
  return Operators::intern(std::move(op));
}

// Every argument of kind ANY, under its number.
void collect_open(Pattern& pattern) {
  const Graph& graph = *pattern.graph;
  for (NodeId node = graph.first(); node != kNoNode; node = graph.next(node)) {
    for (const Argument& argument : graph.all_arguments(node)) {
      if (!is_open(argument)) continue;
      AnyArgument any{open_name(argument), 0, std::nullopt};
      std::string text = text_of(graph, any);
      pattern.open.try_emplace(argument.id, OpenArgument{std::move(any), std::move(text)});
    }
  }
}

}  // namespace

uint64_t Pieces::add(OpenArgument piece) {
  const auto number = static_cast<uint32_t>(handles.size());
  if (kFirstPiece + number >= kFirstOpen) {
    throw_error(ErrorCode::kInvalid, "a graph has too many pieces of patterns");
  }
  handles.push_back(next_handle());
  open.emplace(kFirstPiece + number, std::move(piece));
  return handles.back();
}

uint32_t Pieces::number_of(uint64_t handle) const {
  // Handles grow with every new one.
  const auto place = std::lower_bound(handles.begin(), handles.end(), handle);
  if (place == handles.end() || *place != handle) {
    throw_error(ErrorCode::kInvalid, "piece ", handle, " was not made for this graph");
  }
  return kFirstPiece + static_cast<uint32_t>(place - handles.begin());
}

uint64_t Pieces::handle_of(uint32_t number) const {
  const uint32_t index = number - kFirstPiece;
  return index < handles.size() ? handles[index] : 0;
}

const Operator* one_of_operator() {
  static const Operator* const interned = own_operator(kOneOf);
  return interned;
}

const Operator* outer_operator() {
  static const Operator* const interned = own_operator("ir::outer");
  return interned;
}

void put_outer(ArgumentList& list, const Graph& graph, ValueId value) {
  list.put(Argument::of_int(static_cast<int64_t>(reinterpret_cast<intptr_t>(&graph))));
  list.put(Argument::of_int(value.node));
  list.put(Argument::of_int(value.index));
}

ValueId outer_value(const Graph& replacement, NodeId outer, const Graph& graph) {
  const ArgumentSpan said = replacement.arguments(outer);
  const ValueId value{static_cast<NodeId>(said[1].integer), static_cast<uint32_t>(said[2].integer)};
  const bool is_here = said[0].integer == static_cast<int64_t>(reinterpret_cast<intptr_t>(&graph));
  if (is_here && graph.has(value)) return value;
  throw_error(ErrorCode::kPass, "the replacement ", in_quotes(replacement.name()),
              " reads a value that is not in graph ", in_quotes(graph.name()));
}

std::string text_of(const Graph& graph, const AnyArgument& piece) {
  std::vector<std::string> stated;
  if (piece.name != kEmptyString) stated.push_back(in_quotes(Strings::text(piece.name)));
  if (piece.kinds != 0) stated.push_back(concat("kind=", kinds_text(piece.kinds)));
  if (piece.among) {
    std::vector<std::string> items;
    for (const ArgumentList& item : *piece.among) {
      items.push_back(argument_text(graph, item.items()));
    }
    stated.push_back(call_text("among=", items));
  }
  constexpr double kEndless = std::numeric_limits<double>::infinity();
  if (piece.at_least != -kEndless)
    stated.push_back(concat("at_least=", float_text(piece.at_least)));
  if (piece.at_most != kEndless) stated.push_back(concat("at_most=", float_text(piece.at_most)));
  return call_text("any_value", stated);
}

std::string text_of(const ConstantArgument& piece) {
  std::vector<std::string> stated;
  if (!piece.values.empty()) stated.push_back(elements_text(piece));
  if (piece.atol != 0) stated.push_back(concat("atol=", float_text(piece.atol)));
  if (piece.rtol != 0) stated.push_back(concat("rtol=", float_text(piece.rtol)));
  if (piece.sizes && piece.sizes->size() != 1) {
    std::vector<Dim> dims;
    for (const int64_t size : *piece.sizes) dims.push_back({size});
    stated.push_back(concat("shape=", shape_text(dims)));
  }
  if (piece.name != kEmptyString)
    stated.push_back(concat("name=", in_quotes(Strings::text(piece.name))));
  return call_text("constant", stated);
}

std::string text_of(const VariadicArgument& piece) {
  std::vector<std::string> stated = {in_quotes(Strings::text(piece.name))};
  if (piece.at_least != 0) stated.push_back(concat("at_least=", piece.at_least));
  if (piece.at_most) stated.push_back(concat("at_most=", *piece.at_most));
  if (piece.each != nullptr) stated.push_back(concat("each=", piece.each->name));
  return call_text("variadic", stated);
}

void check_has_no_pieces(const Graph& graph, std::string_view what) {
  for (NodeId node = graph.first(); node != kNoNode; node = graph.next(node)) {
    const ArgumentSpan all = graph.all_arguments(node);
    const bool stands_for_more = graph.type(node) == one_of_operator()->type ||
                                 std::any_of(all.begin(), all.end(), is_piece);
    if (!stands_for_more) continue;
    throw_error(ErrorCode::kPass, what, " ", in_quotes(graph.name()),
                " has a piece of a pattern at ", in_quotes(graph.name_text(node)),
                ": only patterns may");
  }
}

void check_has_no_outer(const Graph& graph, std::string_view what) {
  if (graph.find(outer_operator()->type).empty()) return;
  throw_error(ErrorCode::kPass, what, " ", in_quotes(graph.name()),
              " has a value of another graph: only replacements "
              "may");
}

void check_name_is_free(const Pattern& pattern, StringId name) {
  const auto known = Claims(pattern).run();
  const auto taken = known.find(name);
  if (taken == known.end()) return;
  throw_error(ErrorCode::kInvalid, "the name ", in_quotes(Strings::text(name)), " stands for ",
              taken->second, " in pattern ", in_quotes(pattern.name));
}

std::shared_ptr<Pattern> make_pattern(std::shared_ptr<const Graph> graph, const Pieces& pieces,
                                      std::string_view name) {
  check_has_no_outer(*graph, "pattern");
  auto made = std::make_shared<Pattern>();
  made->graph = std::move(graph);
  made->name = name;
  made->open = pieces.open;
  for (const auto& [value, constraint] : pieces.constraints) {
    if (made->graph->has(value)) made->constraints.emplace(value, constraint);
  }
  for (const auto& [node, choice] : pieces.choices) {
    if (made->graph->alive(node)) made->choices.emplace(node, choice);
  }
  collect_open(*made);
  check_pattern(*made);
  Claims(*made).run();
  return made;
}

}  // namespace bringup::engine
