#include "engine/type_index.h"

#include <algorithm>

#include "engine/graph.h"

namespace bringup::engine {

void TypeIndex::add(StringId type, NodeId node) {
  Bucket& bucket = buckets_[type];
  const bool in_order = bucket.nodes.empty() || (!bucket.dirty.load(std::memory_order_relaxed) &&
                                                 graph_.is_before(bucket.nodes.back(), node));
  bucket.nodes.push_back(node);
  ++bucket.alive;
  if (!in_order) bucket.dirty.store(true, std::memory_order_relaxed);
}

void TypeIndex::remove(StringId type) {
  Bucket& bucket = buckets_[type];
  --bucket.alive;
  bucket.dirty.store(true, std::memory_order_relaxed);
}

void TypeIndex::moved(StringId type) {
  buckets_[type].dirty.store(true, std::memory_order_relaxed);
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
