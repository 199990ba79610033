#include "engine/match/matcher_refusal.h"

#include <set>

#include "engine/graph/text.h"

namespace bringup::engine {

std::string type_text(const Graph& graph, NodeId node) {
  return std::string(Strings::text(graph.type(node)));
}

std::string any_of_text(const std::vector<std::string>& choices) {
  std::string text;
  for (const std::string& choice : choices) text += concat(text.empty() ? "" : " or ", choice);
  return text;
}

std::string anchor_text(const Program& program) {
  std::vector<std::string> types;
  for (const StringId type : program.anchor_types()) types.emplace_back(Strings::text(type));
  return any_of_text(types);
}

std::string types_text(const Graph& graph, std::span<const NodeId> nodes) {
  std::set<std::string> types;
  for (const NodeId node : nodes) types.insert(type_text(graph, node));
  std::string text;
  for (const std::string& type : types) text += concat(text.empty() ? "" : ", ", type);
  return text.empty() ? "none" : text;
}

std::string users_text(const Graph& graph, ValueId value) {
  return graph.users(value).empty() ? "no reader" : types_text(graph, graph.users(value));
}

std::string shape_pattern_text(const std::vector<DimPattern>& shape) {
  std::string text;
  for (const DimPattern& dim : shape) {
    if (!text.empty()) text += ", ";
    switch (dim.kind) {
      case DimPattern::Kind::kNumber:
        text += std::to_string(dim.number);
        break;
      case DimPattern::Kind::kName:
        text += Strings::text(dim.name);
        break;
      case DimPattern::Kind::kAny:
        text += "any";
        break;
      case DimPattern::Kind::kRest:
        text += "...";
        break;
    }
  }
  return concat("[", text, "]");
}

std::string Matcher::term_text(uint32_t frame, uint32_t term) const {
  const Term& shown = program_->term(term);
  switch (shown.kind) {
    case Term::Kind::kAny:
      return *program_->any(shown).text;
    case Term::Kind::kConstant:
      return *program_->constant(shown).text;
    case Term::Kind::kVariadic:
      return *program_->variadic(shown).text;
    case Term::Kind::kNest:
      break;
    default:
      return argument_text(pattern_graph(frame), {&shown.host, 1});
  }
  std::string text;
  const uint32_t end = term + 1 + shown.extent;
  uint32_t index = 0;
  for (uint32_t i = term + 1; i < end; i += 1 + program_->term(i).extent, ++index) {
    const bool is_item = shown.host.tag == Tag::kDict && index % 2 == 1;
    text += concat(index == 0 ? "" : is_item ? ": " : ", ", term_text(frame, i));
  }
  if (shown.host.tag == Tag::kList) return concat("[", text, "]");
  return shown.host.tag == Tag::kDict ? concat("{", text, "}") : concat("slice(", text, ")");
}

std::string Matcher::found_text(const Argument* found) const {
  return argument_text(graph_, {found, 1 + size_t{found->extent}});
}

std::string Matcher::run_text(const Argument* items, uint32_t count) const {
  std::string text;
  for (uint32_t i = 0; i < count; ++i) {
    text += concat(text.empty() ? "" : ", ", found_text(items));
    items += 1 + size_t{items->extent};
  }
  return concat("[", text, "]");
}

std::string Matcher::pattern_value(uint32_t frame, ValueId value) const {
  return value_name(pattern_graph(frame), value);
}

}  // namespace bringup::engine
