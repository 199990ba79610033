#include "engine/graph/text.h"

#include <charconv>
#include <cmath>
#include <cstdio>

namespace bringup::engine {
namespace {

// Digits and decimal exponent of the shortest text that reads back as this number.
struct Digits {
  std::string text;
  int exponent;
};

Digits shortest(double number) {
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::scientific).ptr;
  const std::string_view whole(buffer, static_cast<size_t>(end - buffer));
  const size_t mark = whole.find('e');
  std::string digits(1, whole[0]);
  if (mark > 2) digits += whole.substr(2, mark - 2);
  int exponent = 0;
  const size_t start = whole[mark + 1] == '+' ? mark + 2 : mark + 1;
  std::from_chars(whole.data() + start, whole.data() + whole.size(), exponent);
  return {digits, exponent};
}

std::string fixed(const Digits& digits) {
  const int count = static_cast<int>(digits.text.size());
  if (digits.exponent < 0) {
    const std::string zeros(static_cast<size_t>(-digits.exponent - 1), '0');
    return concat("0.", zeros, digits.text);
  }
  if (digits.exponent >= count - 1) {
    const std::string zeros(static_cast<size_t>(digits.exponent - count + 1), '0');
    return concat(digits.text, zeros, ".0");
  }
  const size_t point = static_cast<size_t>(digits.exponent) + 1;
  return concat(digits.text.substr(0, point), ".", digits.text.substr(point));
}

std::string scientific(const Digits& digits) {
  std::string text = digits.text.substr(0, 1);
  if (digits.text.size() > 1) text += concat(".", digits.text.substr(1));
  char exponent[16];
  std::snprintf(exponent, sizeof exponent, "e%c%02d", digits.exponent < 0 ? '-' : '+',
                std::abs(digits.exponent));
  return text + exponent;
}

constexpr int kDeepest = 64;  // what is nested deeper is not shown

std::string item_text(const Graph& graph, ArgumentSpan item, int depth);

std::string joined(const Graph& graph, ArgumentSpan run, int depth) {
  if (depth == kDeepest) return "...";
  std::string text;
  for (size_t i = 0; i < run.size(); i += 1 + size_t{run[i].extent}) {
    if (i != 0) text += ", ";
    text += item_text(graph, item_at(run, i), depth);
  }
  return text;
}

std::string dict_text(const Graph& graph, ArgumentSpan inside, int depth) {
  if (depth == kDeepest) return "{...}";
  std::string text;
  bool is_key = true;
  for (size_t i = 0; i < inside.size(); i += 1 + size_t{inside[i].extent}) {
    if (i != 0) text += is_key ? ", " : ": ";
    text += item_text(graph, item_at(inside, i), depth);
    is_key = !is_key;
  }
  return concat("{", text, "}");
}

std::string opaque_text(const Graph& graph, uint32_t object) {
  if (graph.host() == nullptr) return concat("<object ", object, ">");
  return graph.host()->text(graph, object);
}

std::string item_text(const Graph& graph, ArgumentSpan item, int depth) {
  const Argument& head = item.front();
  switch (head.tag) {
    case Tag::kNone:
      return "None";
    case Tag::kBool:
      return head.integer != 0 ? "True" : "False";
    case Tag::kInt:
      return std::to_string(head.integer);
    case Tag::kFloat:
      return float_text(head.number);
    case Tag::kString:
      return string_text(Strings::text(head.id));
    case Tag::kSymbol:
      return std::string(Strings::text(head.id));
    case Tag::kOpaque:
      return opaque_text(graph, head.id);
    case Tag::kValue:
      return concat("%", value_name(graph, head.value));
    case Tag::kList:
      return concat("[", joined(graph, item.subspan(1), depth + 1), "]");
    case Tag::kDict:
      return dict_text(graph, item.subspan(1), depth + 1);
    case Tag::kSlice:
      return concat("slice(", joined(graph, item.subspan(1), depth + 1), ")");
  }
  return "";
}

std::string keyword_text(const Graph& graph, ArgumentSpan dict) {
  std::string text;
  if (dict.empty()) return text;
  const ArgumentSpan inside = dict.subspan(1);
  bool is_key = true;
  for (size_t i = 0; i < inside.size(); i += 1 + size_t{inside[i].extent}) {
    const ArgumentSpan item = item_at(inside, i);
    if (is_key) {
      const bool named = item.front().tag == Tag::kString;
      text += concat(", ", named ? Strings::text(item.front().id) : "?", "=");
    } else {
      text += argument_text(graph, item);
    }
    is_key = !is_key;
  }
  return text;
}

}  // namespace

std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  const std::string sign = std::signbit(number) ? "-" : "";
  if (number == 0) return concat(sign, "0.0");
  const Digits digits = shortest(std::fabs(number));
  const bool is_short = digits.exponent >= -4 && digits.exponent < 16;
  return concat(sign, is_short ? fixed(digits) : scientific(digits));
}

std::string string_text(std::string_view text) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string shown(1, quote);
  for (const char letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    char escaped[8];
    if (letter == '\\' || letter == quote) {
      shown += '\\';
      shown += letter;
    } else if (letter == '\n' || letter == '\r' || letter == '\t') {
      shown += letter == '\n' ? "\\n" : letter == '\r' ? "\\r" : "\\t";
    } else if (code < 0x20 || code == 0x7f) {
      std::snprintf(escaped, sizeof escaped, "\\x%02x", code);
      shown += escaped;
    } else {
      shown += letter;
    }
  }
  return shown + quote;
}

std::string dim_text(const Dim& dim) {
  return dim.is_static() ? std::to_string(dim.number) : std::string(Strings::text(dim.symbol));
}

std::string shape_text(std::span<const Dim> sizes) {
  std::string text;
  for (const Dim& dim : sizes) text += concat(text.empty() ? "" : ", ", dim_text(dim));
  return concat("[", text, "]");
}

std::string value_name(const Graph& graph, ValueId value) {
  std::string name(graph.name_text(value.node));
  if (graph.output_count(value.node) != 1) name += concat(":", value.index);
  return name;
}

std::string value_text(const Graph& graph, ValueId value) {
  const std::string name = concat("%", value_name(graph, value));
  const TensorDesc* desc = graph.desc(value);
  if (desc == nullptr) return name;
  return concat(name, ": ", Strings::text(desc->dtype), shape_text(desc->sizes));
}

std::string argument_text(const Graph& graph, ArgumentSpan item) {
  return item_text(graph, item, 0);
}

std::string node_text(const Graph& graph, NodeId node) {
  const Operator& op = graph.op(node);
  std::string shown;
  uint32_t index = 0;
  const ArgumentSpan run = graph.arguments(node);
  for (size_t i = 0; i < run.size(); i += 1 + size_t{run[i].extent}, ++index) {
    if (index != 0) shown += ", ";
    if (index < op.parameters.size()) {
      shown += concat(Strings::text(op.parameters[index].name), "=");
    }
    shown += argument_text(graph, item_at(run, i));
  }
  std::string keywords = keyword_text(graph, graph.keywords(node));
  if (index == 0 && !keywords.empty()) keywords.erase(0, 2);
  const std::string call = concat(Strings::text(op.type), "(", shown, keywords, ")");
  std::string outputs;
  for (uint32_t i = 0; i < graph.output_count(node); ++i) {
    outputs += concat(i == 0 ? "" : ", ", value_text(graph, {node, i}));
  }
  std::string after;
  for (const NodeId before : graph.control_inputs(node)) {
    after += concat(after.empty() ? " after %" : ", %", graph.name_text(before));
  }
  return concat(outputs, outputs.empty() ? "" : " = ", call, after);
}

}  // namespace bringup::engine
