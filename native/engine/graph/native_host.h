// The host of graphs that the engine itself keeps: descriptions and data by value.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "engine/graph/graph.h"

namespace bringup::engine {

// One for the process. A value's handle is the number of its description.
class NativeHost : public Host {
 public:
  static const std::shared_ptr<NativeHost>& instance();

  std::optional<TensorDesc> describe(const Graph& graph, ValueId value) override;
  std::optional<ConstantData> constant(const Graph&, NodeId) override { return std::nullopt; }
  bool draws_random(const Graph&, NodeId) override { return true; }
  std::string text(const Graph& graph, uint32_t object) override;

  // The handle of a description; equal descriptions have the same. Never 0.
  uint64_t intern(TensorDesc desc);

 private:
  std::mutex mutex_;
  std::vector<TensorDesc> descs_;
};

// A new graph that this host serves.
std::shared_ptr<Graph> make_native_graph(std::string_view name);

// Gives a value of such a graph a description, or takes it away (nullptr).
void describe(Graph& graph, ValueId value, const TensorDesc* desc);

}  // namespace bringup::engine
