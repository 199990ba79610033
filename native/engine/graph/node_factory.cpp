#include "engine/graph/node_factory.h"

#include "engine/graph/native_host.h"
#include "engine/util/error.h"

namespace bringup::engine {
namespace {

TensorDesc desc_of(const ConstantData& data) {
  TensorDesc desc;
  desc.dtype = data.dtype;
  desc.device = Strings::intern("cpu");
  desc.strides.resize(data.sizes.size());
  int64_t stride = 1;
  for (size_t index = data.sizes.size(); index-- > 0;) {
    desc.strides[index].number = stride;
    stride *= std::max<int64_t>(data.sizes[index], 1);
  }
  for (const int64_t size : data.sizes) desc.sizes.push_back({size});
  return desc;
}

std::optional<std::string> incompatibility_reason(const Graph& graph, ValueId old, ValueId now,
                                                  const Providers& providers) {
  if (providers.difference) return providers.difference(graph, old, now);
  const TensorDesc* before = graph.desc(old);
  const TensorDesc* after = graph.desc(now);
  if (before == nullptr || after == nullptr) return std::nullopt;
  return difference_of(*before, *after);
}

std::string shown(const Graph& graph, ValueId value) {
  return concat(in_quotes(graph.name_text(value.node)), " (", Strings::text(graph.type(value.node)),
                ")");
}

}  // namespace

StringId base_name_of(StringId type) {
  const std::string_view text = Strings::text(type);
  const size_t colons = text.find("::");
  if (colons == std::string_view::npos) return type;
  const size_t end = std::min(text.find('.', colons), text.size());
  const std::string_view base = text.substr(colons + 2, end - colons - 2);
  return base.empty() ? type : Strings::intern(base);
}

StringId origin_attribute() {
  static const StringId name = Strings::intern("origin");
  return name;
}

NodeId insert_constant(Graph& graph, StringId base, ConstantData data, const Providers& providers) {
  const NodeId node = graph.add_constant(base);
  if (providers.constant_made) {
    providers.constant_made(graph, node, data);
    return node;
  }
  const TensorDesc desc = desc_of(data);
  graph.set_payload(node, std::move(data));
  describe(graph, {node, 0}, &desc);
  return node;
}

void infer_if_known(Graph& graph, NodeId node, const Providers& providers) {
  if (!providers.infer_shape) return;
  bool known = true;
  for_each_value(graph.all_arguments(node),
                 [&](ValueId value) { known = known && graph.meta(value) != 0; });
  if (known) providers.infer_shape(graph, node);
}

void exchange(Graph& graph, ValueId old, ValueId now, const Providers& providers) {
  if (const auto difference = incompatibility_reason(graph, old, now, providers)) {
    throw_error(ErrorCode::kPass, "it would replace ", shown(graph, old), " by ", shown(graph, now),
                ": ", *difference);
  }
  graph.replace_all_uses(old, now);
}

}  // namespace bringup::engine
