#include "engine/graph/names.h"

#include <string>

namespace bringup::engine {

StringId Names::unique(StringId base) {
  StringId name = base;
  while (nodes_.contains(name)) {
    const uint32_t suffix = ++suffixes_[base];
    name = Strings::intern(std::string(Strings::text(base)) + "_" + std::to_string(suffix));
  }
  return name;
}

NodeId Names::find(StringId name) const {
  const NodeId* found = nodes_.find(name);
  return found == nullptr ? kNoNode : *found;
}

}  // namespace bringup::engine
