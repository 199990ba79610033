// The nodes of each type, in graph order on demand, and what their calls are given.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/graph/argument.h"

namespace bringup::engine {

class Graph;

// What stands at one position of the calls of one type.
struct ArgumentForms {
  std::vector<Argument> leaves;  // host arguments that are no nest, each different one once
  bool others = false;           // a value or a nest stands there in one of them
};

// One thread writes; `find` sorts what changed, and may be called by several between writes.
class TypeIndex {
 public:
  explicit TypeIndex(const Graph& graph) : graph_(graph) {}

  void add(StringId type, NodeId node);
  void remove(StringId type);
  // A node of this type stands elsewhere, or has other arguments.
  void moved(StringId type);
  void rewired(StringId type);
  size_t count(StringId type) const;
  // Valid until the graph is changed.
  std::span<const NodeId> find(StringId type) const;
  // By position, as long as the longest call of this type. Valid until the graph is changed.
  std::span<const ArgumentForms> forms(StringId type) const;

 private:
  struct Bucket {
    std::vector<NodeId> nodes;  // while dirty also erased ones, and the same one twice
    size_t alive = 0;
    std::atomic<bool> dirty{false};
    std::vector<ArgumentForms> forms;
    std::atomic<bool> formed{false};  // whether `forms` is that of the nodes
  };

  void settle(StringId type, Bucket& bucket) const;
  void form(Bucket& bucket) const;

  const Graph& graph_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<StringId, Bucket> buckets_;
};

}  // namespace bringup::engine
