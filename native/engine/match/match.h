// What a hook learns about one match.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"

namespace bringup::engine {

// Valid while the hook runs that it is given to.
class Match {
 public:
  virtual ~Match() = default;

  virtual Graph& graph() const = 0;  // that is being rewritten
  virtual std::string_view pattern_name() const = 0;
  // The matched nodes in graph order, without the producers of the inputs.
  virtual std::vector<NodeId> nodes() const = 0;
  // What a value of the pattern stands for; nothing when it is none or is absent in this match.
  virtual std::optional<ValueId> value(ValueId in_pattern) const = 0;
  // The value captured as number `index`; nothing when fewer were captured.
  virtual std::optional<ValueId> captured(uint32_t index) const = 0;
  // What a name stands for: a value captured under it, the argument where the pattern has a named
  // open one, a list of values, or a size; empty when there is none.
  virtual std::vector<Argument> named(std::string_view name) const = 0;
  // Which alternative of the choice of this name matched, if the match reaches any.
  virtual std::optional<uint32_t> chosen(std::string_view name) const = 0;
  // The matches of the items of the list of this name, if they are patterns; they live as this one.
  virtual std::optional<std::vector<const Match*>> items(std::string_view name) const = 0;
};

}  // namespace bringup::engine
