// The names of a graph's nodes: each is unique in it.
#pragma once

#include <string>
#include <unordered_map>

#include "engine/graph/argument.h"
#include "engine/util/flat_map.h"

namespace bringup::engine {

class Names {
 public:
  // `base`, or with the first free number after it: add, add_1, add_2.
  StringId unique(StringId base) {
    StringId name = base;
    while (nodes_.contains(name)) {
      const uint32_t suffix = ++suffixes_[base];
      name = Strings::intern(std::string(Strings::text(base)) + "_" + std::to_string(suffix));
    }
    return name;
  }
  void add(StringId name, NodeId node) { nodes_.insert(name, node); }
  void remove(StringId name) { nodes_.erase(name); }
  NodeId find(StringId name) const {
    const NodeId* found = nodes_.find(name);
    return found == nullptr ? kNoNode : *found;
  }
  size_t size() const { return nodes_.size(); }
  void reserve(size_t count) { nodes_.reserve(count); }

 private:
  FlatMap<StringId, NodeId, kNoString> nodes_;
  std::unordered_map<StringId, uint32_t> suffixes_;
};

}  // namespace bringup::engine
