#include "engine/match/predicates.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/graph/text.h"

namespace bringup::engine {

bool AnyArgument::bounded() const {
  constexpr double kEndless = std::numeric_limits<double>::infinity();
  return at_least != -kEndless || at_most != kEndless;
}

Predicates::Predicates(const Program& program, const Graph& graph, std::vector<uint32_t> objects)
    : program_(program), graph_(graph), objects_(std::move(objects)) {
  objects_.resize(program.objects().size(), kNoSlot);
}

bool Predicates::same_leaf(const Term& wanted, const Argument& found) const {
  if (wanted.host.tag != Tag::kOpaque) return same({&wanted.host, 1}, {&found, 1});
  return found.tag == Tag::kOpaque && objects_[wanted.slot] == found.id;
}

bool Predicates::fits_leaf(const Term& wanted, const Argument& found) const {
  if (wanted.kind == Term::Kind::kAny) return fits_any(program_.any(wanted), {&found, 1});
  if (wanted.kind == Term::Kind::kConstant) {
    return mismatch(program_.constant(wanted), found) == Mismatch::kNone;
  }
  return wanted.kind == Term::Kind::kHost && same_leaf(wanted, found);
}

bool Predicates::same_plain(uint32_t wanted, ArgumentSpan found) const {
  if (program_.term(wanted).extent + 1 != found.size()) return false;
  for (uint32_t i = 0; i < found.size(); ++i) {
    const Term& term = program_.term(wanted + i);
    if (term.kind == Term::Kind::kNest) {
      const bool alike = term.host.tag == found[i].tag && term.host.count == found[i].count &&
                         term.extent == found[i].extent;
      if (!alike) return false;
    } else if (found[i].is_nest() || !same_leaf(term, found[i])) {
      return false;
    }
  }
  return true;
}

bool Predicates::is_plain(ArgumentSpan item) {
  return std::none_of(item.begin(), item.end(),
                      [](const Argument& argument) { return argument.tag == Tag::kValue; });
}

namespace {

uint8_t kind_of(Tag tag) {
  switch (tag) {
    case Tag::kBool:
      return AnyArgument::kBool;
    case Tag::kInt:
      return AnyArgument::kInt;
    case Tag::kFloat:
      return AnyArgument::kFloat;
    case Tag::kString:
      return AnyArgument::kString;
    case Tag::kNone:
      return AnyArgument::kNone;
    case Tag::kList:
      return AnyArgument::kList;
    case Tag::kValue:
      return AnyArgument::kTensor;
    default:
      return 0;
  }
}

bool is_close(const ConstantArgument& wanted, const Argument& found) {
  const auto& value = wanted.values.front();
  const bool found_whole = found.tag != Tag::kFloat;
  if (value.is_whole && found_whole && wanted.atol == 0 && wanted.rtol == 0) {
    return value.whole == found.integer;
  }
  const double expected = value.is_whole ? static_cast<double>(value.whole) : value.real;
  const double got = found_whole ? static_cast<double>(found.integer) : found.number;
  const bool near = std::fabs(got - expected) <= wanted.atol + wanted.rtol * std::fabs(expected);
  return got == expected || near || (std::isnan(got) && std::isnan(expected));
}

std::string form_text(const ConstantData& data) {
  std::vector<Dim> dims;
  for (const int64_t size : data.sizes) dims.push_back({size, kNoString});
  return concat({Strings::text(data.dtype), shape_text(dims)});
}

}  // namespace

bool Predicates::fits_any(const CompiledAny& wanted, ArgumentSpan found) const {
  const Argument& head = found.front();
  const AnyArgument& what = *wanted.what;
  if (what.kinds != 0 && (what.kinds & kind_of(head.tag)) == 0) return false;
  if (what.among && std::none_of(wanted.among.begin(), wanted.among.end(),
                                 [&](uint32_t term) { return same_plain(term, found); })) {
    return false;
  }
  if (!what.bounded()) return true;
  if (head.tag != Tag::kInt && head.tag != Tag::kFloat) return false;
  const double number = head.tag == Tag::kInt ? static_cast<double>(head.integer) : head.number;
  return what.at_least <= number && number <= what.at_most;
}

bool Predicates::is_constant(const Argument& found) const {
  if (found.tag == Tag::kValue) {
    return graph_.type(found.value.node) == Operators::constant()->type;
  }
  return found.tag == Tag::kBool || found.tag == Tag::kInt || found.tag == Tag::kFloat;
}

Predicates::Mismatch Predicates::mismatch(const CompiledConstant& wanted,
                                          const Argument& found) const {
  const ConstantArgument& what = *wanted.what;
  if (!is_constant(found)) return Mismatch::kNoConstant;
  const bool open = what.values.empty() && !what.sizes;
  if (open) return Mismatch::kNone;
  if (found.tag != Tag::kValue) {
    return !what.sizes && is_close(what, found) ? Mismatch::kNone : Mismatch::kValue;
  }
  const ConstantData* data = graph_.payload(found.value.node);
  if (data == nullptr) return Mismatch::kUnknown;
  bool readable = true;
  if (what.sizes && *what.sizes != data->sizes) {
    const ConstantArgument none;
    first_difference(none, {data->dtype, {}, {}, nullptr}, readable);
    return readable ? Mismatch::kShape : Mismatch::kUnknown;
  }
  const bool differs = first_difference(what, *data, readable).has_value();
  return !readable ? Mismatch::kUnknown : differs ? Mismatch::kValue : Mismatch::kNone;
}

Refusal Predicates::refusal(const CompiledConstant& wanted, const Argument& found) const {
  const std::string shown = argument_text(graph_, {&found, 1});
  switch (mismatch(wanted, found)) {
    case Mismatch::kUnknown:
      return {"the data of a constant is not known", *wanted.text, shown};
    case Mismatch::kShape: {
      std::vector<Dim> dims;
      for (const int64_t size : graph_.payload(found.value.node)->sizes) {
        dims.push_back({size, kNoString});
      }
      return {"a constant has another shape", *wanted.text, shape_text(dims)};
    }
    case Mismatch::kValue: {
      if (found.tag != Tag::kValue) return {"a constant differs", *wanted.text, shown};
      bool readable = true;
      const ConstantData& data = *graph_.payload(found.value.node);
      const size_t index = first_difference(*wanted.what, data, readable).value_or(0);
      return {"a constant differs", *wanted.text,
              concat({element_text(data, index), " at element ", std::to_string(index), " of ",
                      shown})};
    }
    default:
      return {"an argument is not a constant", *wanted.text, shown};
  }
}

Predicates::DataMismatch Predicates::data_mismatch(const PatternNode& wanted, NodeId found) const {
  if (wanted.data == nullptr) return DataMismatch::kNone;
  const ConstantData* data = graph_.payload(found);
  if (data == nullptr) return DataMismatch::kUnknown;
  if (wanted.data->dtype != data->dtype || wanted.data->sizes != data->sizes) {
    return DataMismatch::kForm;
  }
  const bool same_bytes =
      wanted.data->bytes.size() == data->bytes.size() &&
      (data->bytes.empty() ||
       std::memcmp(wanted.data->bytes.data(), data->bytes.data(), data->bytes.size()) == 0);
  return same_bytes ? DataMismatch::kNone : DataMismatch::kElements;
}

Refusal Predicates::data_refusal(const Graph& pattern, const PatternNode& wanted,
                                 NodeId found) const {
  const Argument mine = Argument::of_value({wanted.id, 0});
  const Argument theirs = Argument::of_value({found, 0});
  const std::string got = argument_text(graph_, {&theirs, 1});
  switch (data_mismatch(wanted, found)) {
    case DataMismatch::kUnknown:
      return {"the data of a constant is not known", form_text(*wanted.data), got};
    case DataMismatch::kForm:
      return {"a constant has another form", form_text(*wanted.data),
              form_text(*graph_.payload(found))};
    default:
      return {"the elements of a constant differ", argument_text(pattern, {&mine, 1}), got};
  }
}

bool Predicates::all_values(const Argument* items, uint32_t count) {
  return std::all_of(items, items + count,
                     [](const Argument& item) { return item.tag == Tag::kValue; });
}

bool Predicates::fits_length(const VariadicArgument& wanted, uint32_t count) {
  return count >= wanted.at_least && (!wanted.at_most || count <= *wanted.at_most);
}

bool is_on(StringId device, StringId wanted) {
  if (device == wanted) return true;
  const std::string_view text = Strings::text(device);
  return text.substr(0, text.find(':')) == Strings::text(wanted);
}

}  // namespace bringup::engine
