// Whether a tensor of the graph is as the pattern states.
#include <algorithm>

#include "engine/graph/text.h"
#include "engine/match/matcher.h"
#include "engine/match/matcher_refusal.h"

namespace bringup::engine {
namespace {

std::vector<std::string> texts(const std::vector<StringId>& ids) {
  std::vector<std::string> shown;
  for (const StringId id : ids) shown.emplace_back(Strings::text(id));
  return shown;
}

bool contains(const std::vector<StringId>& choices, StringId one) {
  return choices.empty() || std::find(choices.begin(), choices.end(), one) != choices.end();
}

// Which size of the pattern goes with which of the tensor; nothing for other numbers of them.
std::optional<std::vector<std::pair<size_t, size_t>>> aligned(const std::vector<DimPattern>& shape,
                                                              size_t rank) {
  const auto rest = std::find_if(shape.begin(), shape.end(), [](const DimPattern& dim) {
    return dim.kind == DimPattern::Kind::kRest;
  });
  const bool open = rest != shape.end();
  const size_t fixed = shape.size() - (open ? 1 : 0);
  if (open ? fixed > rank : fixed != rank) return std::nullopt;
  const auto front = static_cast<size_t>(rest - shape.begin());
  std::vector<std::pair<size_t, size_t>> pairs;
  for (size_t i = 0; i < front; ++i) pairs.emplace_back(i, i);
  for (size_t i = front + 1; i < shape.size(); ++i) {
    pairs.emplace_back(i, rank - (shape.size() - i));
  }
  return pairs;
}

}  // namespace

bool Matcher::is_as_stated(uint32_t frame, ValueId wanted, ValueId found) {
  const CompiledConstraint* constraint = bound_.sub(frame).constraint(wanted);
  if (constraint == nullptr) return true;
  const TensorConstraint& what = *constraint->what;
  const TensorDesc* desc = graph_.desc(found);
  const std::string_view fact =
      desc == nullptr                       ? "desc"
      : !contains(what.dtypes, desc->dtype) ? "dtype"
      : !what.ranks.empty() && std::find(what.ranks.begin(), what.ranks.end(),
                                         desc->sizes.size()) == what.ranks.end()
          ? "rank"
      : !what.devices.empty() &&
              std::none_of(what.devices.begin(), what.devices.end(),
                           [&](StringId one) { return is_on(desc->device, one); })
          ? "device"
          : "";
  if (fact.empty()) return !what.shape || fit_sizes(frame, *constraint, wanted, found.node, *desc);
  refuse_with(found.node, [&] {
    const std::string where = in_quotes(pattern_value(frame, wanted));
    if (fact == "desc") return Refusal{concat("shape and dtype of ", where, " are not known")};
    std::vector<std::string> choices;
    std::string got;
    if (fact == "dtype") {
      choices = texts(what.dtypes);
      got = Strings::text(desc->dtype);
    } else if (fact == "device") {
      choices = texts(what.devices);
      got = Strings::text(desc->device);
    } else {
      for (const uint32_t rank : what.ranks) choices.push_back(std::to_string(rank));
      got = std::to_string(desc->sizes.size());
    }
    return Refusal{concat("the ", fact, " of ", where, " differs"), any_of_text(choices), got};
  });
  return false;
}

// Compares the sizes; if all fit, the named ones become known.
bool Matcher::fit_sizes(uint32_t frame, const CompiledConstraint& constraint, ValueId wanted,
                        NodeId found, const TensorDesc& desc) {
  const std::vector<DimPattern>& shape = *constraint.what->shape;

  const auto shape_differs = [&] {
    refuse_with(found, [&] {
      return Refusal{concat("the shape of ", in_quotes(pattern_value(frame, wanted)), " differs"),
                     shape_pattern_text(shape), shape_text(desc.sizes)};
    });
    return false;
  };
  const auto pairs = aligned(shape, desc.sizes.size());
  if (!pairs) return shape_differs();
  const size_t savepoint = bound_.savepoint();
  for (const auto& [i, k] : *pairs) {
    const DimPattern& size = shape[i];
    const Dim& dim = desc.sizes[k];
    if (size.kind == DimPattern::Kind::kNumber && !(dim == Dim{size.number, kNoString})) {
      bound_.rollback_to(savepoint);
      return shape_differs();
    }
    if (size.kind != DimPattern::Kind::kName) continue;
    const NamePlace& place = constraint.names[i];
    const uint32_t scope = bound_.scope(frame, place.hops);
    const std::optional<Dim> known = bound_.size(scope, place.slot);
    if (!known) {
      bound_.set_size(scope, place.slot, dim);
    } else if (!(*known == dim)) {
      bound_.rollback_to(savepoint);
      refuse_with(found, [&] {
        return Refusal{concat("size ", in_quotes(Strings::text(size.name)), " in ",
                              in_quotes(pattern_value(frame, wanted)), " differs"),
                       dim_text(*known), dim_text(dim)};
      });
      return false;
    }
  }
  return true;
}

}  // namespace bringup::engine
