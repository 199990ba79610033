#include "engine/match/predicates.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/graph/text.h"
#include "engine/util/numbers.h"

namespace bringup::engine {

namespace {

// Whether a number of one kind is one of the other kind that a call's argument may be.
bool same_scalar(const Argument& left, const Argument& right) {
  if (left.tag == Tag::kInt && right.tag == Tag::kFloat) {
    return same_number(left.integer, right.number);
  }
  return left.tag == Tag::kFloat && right.tag == Tag::kInt &&
         same_number(right.integer, left.number);
}

}  // namespace

bool ConstantArgument::fits(const Number& expected, const Number& got) const {
  if (atol == 0 && rtol == 0) {
    if (expected.is_whole && got.is_whole) return expected.whole == got.whole;
    if (expected.is_whole) return same_number(expected.whole, got.real);
    if (got.is_whole) return same_number(got.whole, expected.real);
    return same_number(expected.real, got.real);
  }
  const double wanted = expected.as_real(), found = got.as_real();
  const bool near = std::fabs(found - wanted) <= atol + rtol * std::fabs(wanted);
  return near || wanted == found || same_number(wanted, found);
}

bool AnyArgument::bounded() const {
  constexpr double kEndless = std::numeric_limits<double>::infinity();
  return at_least != -kEndless || at_most != kEndless;
}

Predicates::Predicates(const Program& program, const Graph& graph, std::vector<uint32_t> objects)
    : program_(program), graph_(graph), objects_(std::move(objects)) {
  objects_.resize(program.objects().size(), kNoSlot);
}

bool Predicates::same_leaf(const Term& wanted, const Argument& found, bool any_kind) const {
  if (any_kind && wanted.is_scalar && same_scalar(wanted.host, found)) return true;
  if (wanted.host.tag != Tag::kOpaque) return same({&wanted.host, 1}, {&found, 1});
  return found.tag == Tag::kOpaque && objects_[wanted.slot] == found.id;
}

bool Predicates::fits_leaf(const Term& wanted, const Argument& found) const {
  if (wanted.kind == Term::Kind::kAny) return fits_any(program_.any(wanted), {&found, 1}, true);
  if (wanted.kind == Term::Kind::kConstant) {
    return mismatch(program_.constant(wanted), found) == Mismatch::kNone;
  }
  return wanted.kind == Term::Kind::kHost && same_leaf(wanted, found, true);
}

// A floating point tensor among what a call reads decides the dtype, whatever the kind of a number.
bool Predicates::takes_any_kind(NodeId reader) const {
  const auto is_floating = [&](const Argument& argument) {
    if (argument.tag != Tag::kValue) return false;
    const TensorDesc* desc = graph_.desc(argument.value);
    const std::string_view dtype = desc == nullptr ? "" : Strings::text(desc->dtype);
    return dtype.starts_with("float") || dtype == "bfloat16" || dtype.starts_with("complex");
  };
  bool found = false;
  const ArgumentSpan run = graph_.arguments(reader);
  for (size_t i = 0; i < run.size(); i += 1 + size_t{run[i].extent}) {
    const ArgumentSpan argument = item_at(run, i);
    found |= is_floating(argument.front());
    // each tensor of a list meets the number by itself
    const ArgumentSpan inside = argument.subspan(1);
    const bool has_values = !is_plain(inside);
    if (has_values && !std::all_of(inside.begin(), inside.end(), is_floating)) return false;
    found |= has_values;
  }
  return found;
}

bool Predicates::same_plain(uint32_t wanted, ArgumentSpan found, bool any_kind) const {
  if (program_.term(wanted).extent + 1 != found.size()) return false;
  for (uint32_t i = 0; i < found.size(); ++i) {
    const Term& term = program_.term(wanted + i);
    if (term.kind == Term::Kind::kNest) {
      const bool alike = term.host.tag == found[i].tag && term.host.count == found[i].count &&
                         term.extent == found[i].extent;
      if (!alike) return false;
    } else if (found[i].is_nest() || !same_leaf(term, found[i], any_kind)) {
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

ConstantArgument::Number number_of(const Argument& host) {
  if (host.tag == Tag::kFloat) return {false, 0, host.number};
  return {true, host.integer, 0};
}

std::string form_text(const ConstantData& data) {
  std::vector<Dim> dims;
  for (const int64_t size : data.sizes) dims.push_back({size, kNoString});
  return concat(Strings::text(data.dtype), shape_text(dims));
}

}  // namespace

bool Predicates::fits_any(const CompiledAny& wanted, ArgumentSpan found, bool any_kind) const {
  const Argument& head = found.front();
  const AnyArgument& what = *wanted.what;
  if (what.kinds != 0 && (what.kinds & bit_of(head.tag)) == 0) return false;
  if (what.among && std::none_of(wanted.among.begin(), wanted.among.end(), [&](uint32_t term) {
        return same_plain(term, found, any_kind);
      })) {
    return false;
  }
  if (!what.bounded()) return true;
  if (head.tag != Tag::kInt && head.tag != Tag::kFloat) return false;
  if (head.tag == Tag::kInt) return is_between(what.at_least, head.integer, what.at_most);
  return what.at_least <= head.number && head.number <= what.at_most;
}

bool Predicates::is_constant(const Argument& found) const {
  if (found.tag == Tag::kValue) return graph_.type(found.value.node) == Operators::constant()->type;
  return found.tag == Tag::kBool || found.tag == Tag::kInt || found.tag == Tag::kFloat;
}

Predicates::Mismatch Predicates::mismatch(const CompiledConstant& wanted,
                                          const Argument& found) const {
  const ConstantArgument& what = *wanted.what;
  if (!is_constant(found)) return Mismatch::kNoConstant;
  const bool open = what.values.empty() && !what.sizes;
  if (open) return Mismatch::kNone;
  if (found.tag != Tag::kValue) {
    const bool fits = !what.sizes && what.fits(what.values.front(), number_of(found));
    return fits ? Mismatch::kNone : Mismatch::kValue;
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
              concat(element_text(data, index), " at element ", index, " of ", shown)};
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
