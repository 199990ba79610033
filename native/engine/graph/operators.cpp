#include "engine/graph/operators.h"

#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "engine/util/forever.h"

namespace bringup::engine {
namespace {

struct Table {
  std::mutex mutex;
  std::unordered_multimap<StringId, std::unique_ptr<const Operator>> by_type;
};

Table& table() { return forever<Table>(); }

Operator structure(std::string_view type, int32_t output_count) {
  Operator facts;
  facts.type = Strings::intern(type);
  facts.output_count = output_count;
  return facts;
}

}  // namespace

std::optional<uint32_t> Operator::index_of(StringId parameter) const {
  for (uint32_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].name == parameter) return i;
  }
  return std::nullopt;
}

bool operator==(const Operator& a, const Operator& b) {
  return a.type == b.type && a.parameters == b.parameters && a.output_count == b.output_count &&
         a.mutates == b.mutates && a.aliases == b.aliases && a.random == b.random &&
         a.kept == b.kept && a.opaque == b.opaque && a.commutes == b.commutes &&
         a.commutes_if_one == b.commutes_if_one;
}

const Operator* Operators::intern(Operator facts) {
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  const auto [begin, end] = all.by_type.equal_range(facts.type);
  for (auto found = begin; found != end; ++found) {
    if (*found->second == facts) return found->second.get();
  }
  facts.number = static_cast<uint32_t>(all.by_type.size());
  const StringId type = facts.type;
  auto kept = std::make_unique<const Operator>(std::move(facts));
  return all.by_type.emplace(type, std::move(kept))->second.get();
}

const Operator* Operators::input() {
  static const Operator* const facts = intern(structure("ir::input", 1));
  return facts;
}

const Operator* Operators::constant() {
  static const Operator* const facts = intern(structure("ir::constant", 1));
  return facts;
}

const Operator* Operators::output() {
  static const Operator* const facts = intern(structure("ir::output", 0));
  return facts;
}

}  // namespace bringup::engine
