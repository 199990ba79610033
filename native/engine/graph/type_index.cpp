#include "engine/graph/type_index.h"

#include <algorithm>
#include <bit>
#include <set>

#include "engine/graph/graph.h"

namespace bringup::engine {
namespace {

// Collects what stands at one position.
class FormsOfPosition {
 public:
  void add(const Argument& argument) {
    if (argument.tag == Tag::kValue || argument.is_nest()) {
      made_.others = true;
    } else if (seen_.insert({argument.tag, bits_of(argument)}).second) {
      made_.leaves.push_back(argument);
    }
  }
  ArgumentForms take() { return std::move(made_); }

 private:
  static uint64_t bits_of(const Argument& leaf) {
    switch (leaf.tag) {
      case Tag::kBool:
      case Tag::kInt:
        return static_cast<uint64_t>(leaf.integer);
      case Tag::kFloat:
        return std::bit_cast<uint64_t>(leaf.number);
      case Tag::kNone:
        return 0;
      default:
        return leaf.id;
    }
  }

  ArgumentForms made_;
  std::set<std::pair<Tag, uint64_t>> seen_;
};

}  // namespace

void TypeIndex::add(StringId type, NodeId node) {
  Bucket& bucket = buckets_[type];
  const bool in_order = bucket.nodes.empty() || (!bucket.dirty.load(std::memory_order_relaxed) &&
                                                 graph_.is_before(bucket.nodes.back(), node));
  bucket.nodes.push_back(node);
  ++bucket.alive;
  if (!in_order) bucket.dirty.store(true, std::memory_order_relaxed);
  bucket.formed.store(false, std::memory_order_relaxed);
}

void TypeIndex::remove(StringId type) {
  Bucket& bucket = buckets_[type];
  --bucket.alive;
  bucket.dirty.store(true, std::memory_order_relaxed);
  bucket.formed.store(false, std::memory_order_relaxed);
}

void TypeIndex::moved(StringId type) {
  buckets_[type].dirty.store(true, std::memory_order_relaxed);
}

void TypeIndex::rewired(StringId type) {
  buckets_[type].formed.store(false, std::memory_order_relaxed);
}

size_t TypeIndex::count(StringId type) const {
  const auto found = buckets_.find(type);
  return found == buckets_.end() ? 0 : found->second.alive;
}

std::span<const NodeId> TypeIndex::find(StringId type) const {
  const auto found = buckets_.find(type);
  if (found == buckets_.end()) return {};
  Bucket& bucket = found->second;
  if (bucket.dirty.load(std::memory_order_acquire)) settle(type, bucket);
  return bucket.nodes;
}

std::span<const ArgumentForms> TypeIndex::forms(StringId type) const {
  const auto found = buckets_.find(type);
  if (found == buckets_.end()) return {};
  find(type);  // only nodes that are there
  Bucket& bucket = found->second;
  if (!bucket.formed.load(std::memory_order_acquire)) form(bucket);
  return bucket.forms;
}

void TypeIndex::form(Bucket& bucket) const {
  const std::lock_guard lock(mutex_);
  if (bucket.formed.load(std::memory_order_relaxed)) return;
  std::vector<FormsOfPosition> positions;
  for (const NodeId node : bucket.nodes) {
    const ArgumentSpan arguments = graph_.arguments(node);
    if (graph_.argument_count(node) > positions.size()) {
      positions.resize(graph_.argument_count(node));
    }
    size_t position = 0;
    for (size_t at = 0; at < arguments.size(); at += 1 + size_t{arguments[at].extent}) {
      positions[position++].add(arguments[at]);
    }
  }
  bucket.forms.clear();
  for (FormsOfPosition& position : positions) bucket.forms.push_back(position.take());
  bucket.formed.store(true, std::memory_order_release);
}

void TypeIndex::settle(StringId type, Bucket& bucket) const {
  const std::lock_guard lock(mutex_);
  if (!bucket.dirty.load(std::memory_order_relaxed)) return;
  std::vector<NodeId>& nodes = bucket.nodes;
  std::erase_if(nodes,
                [&](NodeId node) { return !graph_.alive(node) || graph_.type(node) != type; });
  std::sort(nodes.begin(), nodes.end(),
            [&](NodeId one, NodeId other) { return graph_.order(one) < graph_.order(other); });
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  bucket.dirty.store(false, std::memory_order_release);
}

}  // namespace bringup::engine
