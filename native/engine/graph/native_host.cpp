#include "engine/graph/native_host.h"

#include <algorithm>

namespace bringup::engine {

const std::shared_ptr<NativeHost>& NativeHost::instance() {
  static const auto* const host = new std::shared_ptr<NativeHost>(new NativeHost);
  return *host;
}

std::optional<TensorDesc> NativeHost::describe(const Graph& graph, ValueId value) {
  const uint64_t handle = graph.meta(value);
  const std::lock_guard lock(mutex_);
  if (handle == 0 || handle > descs_.size()) return std::nullopt;
  return descs_[handle - 1];
}

std::string NativeHost::text(const Graph&, uint32_t object) {
  return "object " + std::to_string(object);
}

uint64_t NativeHost::intern(TensorDesc desc) {
  const std::lock_guard lock(mutex_);
  const auto place = std::find(descs_.begin(), descs_.end(), desc);
  if (place != descs_.end()) return static_cast<uint64_t>(place - descs_.begin()) + 1;
  descs_.push_back(std::move(desc));
  return descs_.size();
}

std::shared_ptr<Graph> make_native_graph(std::string_view name) {
  auto graph = std::make_shared<Graph>(name);
  graph->set_host(NativeHost::instance());
  return graph;
}

void describe(Graph& graph, ValueId value, const TensorDesc* desc) {
  graph.set_meta(value, desc == nullptr ? 0 : NativeHost::instance()->intern(*desc));
}

}  // namespace bringup::engine
