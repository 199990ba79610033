// What few nodes have, kept beside them: control edges, attributes, subgraphs; and descriptions.
#include <algorithm>
#include <utility>

#include "engine/graph/graph.h"

namespace bringup::engine {

ArgumentRange Graph::find_named(const NamedRanges& all, NodeId node, StringId name) {
  const auto found = all.find(node);
  if (found == all.end()) return {};
  for (const Named& named : found->second) {
    if (named.name == name) return named.range;
  }
  return {};
}

// An empty range takes the name out.
void Graph::put_named(NamedRanges& all, NodeId node, StringId name, const ArgumentRange& range) {
  std::vector<Named>& named = all[node];
  const auto found =
      std::find_if(named.begin(), named.end(), [&](const Named& one) { return one.name == name; });
  if (found == named.end()) {
    if (range.extent != 0) named.push_back({name, range});
  } else if (range.extent != 0) {
    found->range = range;
  } else {
    named.erase(found);
  }
}

// Control edges

ArgumentRange Graph::control_range(NodeId node) const {
  const auto found = controls_.find(node);
  return found == controls_.end() ? ArgumentRange{} : found->second;
}

std::vector<NodeId> Graph::control_inputs(NodeId node) const {
  at(node);
  std::vector<NodeId> found;
  for_each_value(items_of(control_range(node)), [&](ValueId edge) { found.push_back(edge.node); });
  return found;
}

std::vector<NodeId> Graph::control_users(NodeId node) const {
  at(node);
  const auto found = control_users_.find(node);
  if (found == control_users_.end()) return {};
  std::vector<NodeId> sorted = found->second;
  std::sort(sorted.begin(), sorted.end(),
            [&](NodeId one, NodeId other) { return is_before(one, other); });
  return sorted;
}

bool Graph::has_control_edge(NodeId source, NodeId target) const {
  if (controls_.empty()) return false;
  const ArgumentSpan edges = items_of(control_range(target));
  return std::any_of(edges.begin(), edges.end(),
                     [&](const Argument& edge) { return edge.value.node == source; });
}

// What is there from the start neither waits nor is waited for, but by reading it. Edges may lead
// from inputs of patterns and replacements, which stand for what a node computed.
void Graph::require_control_edge(NodeId source, NodeId target) const {
  require_alive(source, "the start of a control edge");
  const bool has_source = source != kOutput && &op(source) != Operators::constant();
  const bool has_target = target != kOutput && &op(target) != Operators::constant() &&
                          &op(target) != Operators::input();
  if (source != target && has_source && has_target) return;
  throw_error(ErrorCode::kInvalid, "no control edge can lead from ", in_quotes(name_text(source)),
              " (", Strings::text(type(source)), ") to ", in_quotes(name_text(target)), " (",
              Strings::text(type(target)), ")");
}

void Graph::set_control_inputs(NodeId node, std::span<const NodeId> before) {
  require_alive(node, "given control edges");
  ArgumentList edges;
  for (const NodeId input : before) {
    require_control_edge(input, node);
    edges.put(Argument::of_value({input, 0}));
  }
  Edit edit{EditKind::kControl, node};
  edit.old = control_range(node);
  edit.now = keep({edges.items(), edges.count()});
  apply(edit);
}

void Graph::add_control_edge(NodeId source, NodeId target) {
  require_alive(target, "given control edges");
  require_control_edge(source, target);
  if (has_control_edge(source, target)) return;
  std::vector<NodeId> before = control_inputs(target);
  before.push_back(source);
  set_control_inputs(target, before);
}

void Graph::remove_control_edge(NodeId source, NodeId target) {
  require_alive(target, "given control edges");
  std::vector<NodeId> before = control_inputs(target);
  if (std::erase(before, source) == 0) {
    at(source);
    throw_error(ErrorCode::kInvalid, "no control edge leads from ", in_quotes(name_text(source)),
                " to ", in_quotes(name_text(target)));
  }
  set_control_inputs(target, before);
}

void Graph::put_control(NodeId node, const ArgumentRange& range) {
  for (const NodeId input : control_inputs(node)) std::erase(control_users_[input], node);
  if (range.extent == 0) {
    controls_.erase(node);
    return;
  }
  controls_[node] = range;
  for (const NodeId input : control_inputs(node)) {
    std::vector<NodeId>& users = control_users_[input];
    if (users.empty() || users.back() != node) users.push_back(node);
  }
}

// Attributes

ArgumentRange Graph::attribute_range(NodeId node, StringId name) const {
  return find_named(attributes_, node, name);
}

std::vector<Attribute> Graph::attributes(NodeId node) const {
  at(node);
  std::vector<Attribute> all;
  const auto found = attributes_.find(node);
  if (found == attributes_.end()) return all;
  for (const Named& named : found->second) all.push_back({named.name, items_of(named.range)});
  return all;
}

std::optional<ArgumentSpan> Graph::attribute(NodeId node, StringId name) const {
  at(node);
  const ArgumentRange range = attribute_range(node, name);
  if (range.extent == 0) return std::nullopt;
  return items_of(range);
}

void Graph::set_attribute(NodeId node, StringId name, ArgumentSpan item) {
  require_alive(node, "given an attribute");
  const Call call{item, item.empty() ? 0u : 1u};
  require_call(call);
  for_each_value(item, [&](ValueId) {
    throw_error(ErrorCode::kInvalid, "attribute ", in_quotes(Strings::text(name)), " of node ",
                in_quotes(name_text(node)), " cannot hold a value of the graph");
  });
  Edit edit{EditKind::kAttribute, node};
  edit.name = name;
  edit.old = attribute_range(node, name);
  edit.now = keep(call);
  apply(edit);
}

void Graph::put_attribute(NodeId node, StringId name, const ArgumentRange& range) {
  put_named(attributes_, node, name, range);
}

// Subgraphs

ArgumentRange Graph::subgraph_range(NodeId node, StringId name) const {
  return find_named(subgraphs_, node, name);
}

std::vector<Subgraph> Graph::subgraphs(NodeId node) const {
  at(node);
  std::vector<Subgraph> all;
  const auto found = subgraphs_.find(node);
  if (found == subgraphs_.end()) return all;
  for (const Named& named : found->second) {
    all.push_back({named.name, subgraph_list_[items_of(named.range).front().integer]});
  }
  return all;
}

void Graph::set_subgraph(NodeId node, StringId name, std::shared_ptr<Graph> graph) {
  require_alive(node, "given a subgraph");
  if (graph && graph->parent_ != nullptr) {
    throw_error(ErrorCode::kInvalid, "graph ", in_quotes(graph->name()), " is a subgraph of ",
                in_quotes(graph->parent_->name()), " already");
  }
  for (const Graph* above = this; graph && above != nullptr; above = above->parent_) {
    if (above == graph.get()) {
      throw_error(ErrorCode::kInvalid, "graph ", in_quotes(graph->name()),
                  " cannot be a subgraph of itself");
    }
  }
  ArgumentList number;
  if (graph) {
    number.put(Argument::of_int(static_cast<int64_t>(subgraph_list_.size())));
    subgraph_list_.push_back(std::move(graph));
  }
  Edit edit{EditKind::kSubgraph, node};
  edit.name = name;
  edit.old = subgraph_range(node, name);
  edit.now = keep({number.items(), number.count()});
  apply(edit);
}

void Graph::put_subgraph(NodeId node, StringId name, const ArgumentRange& range) {
  const auto child = [&](const ArgumentRange& number) -> Graph* {
    return number.extent == 0 ? nullptr : subgraph_list_[items_of(number).front().integer].get();
  };
  if (Graph* former = child(subgraph_range(node, name))) {
    former->parent_ = nullptr;
    former->parent_node_ = kNoNode;
  }
  put_named(subgraphs_, node, name, range);
  if (Graph* now = child(range)) {
    now->parent_ = this;
    now->parent_node_ = node;
  }
}

// Descriptions

void Graph::set_meta(ValueId value, uint64_t meta) {
  const uint64_t former = this->meta(value);
  if (open_) former_metas_.push_back({value, former});
  write_meta(value, meta);
}

void Graph::write_meta(ValueId value, uint64_t meta) {
  Value& written = value_at(value);
  const bool described = written.meta != 0;
  written.meta = meta;
  if (!described) return;
  const std::lock_guard lock(described_mutex_);
  descs_.erase(value);
}

void Graph::set_payload(NodeId node, ConstantData data) {
  require_alive(node, "given data");
  if (&op(node) != Operators::constant()) {
    throw_error(ErrorCode::kInvalid, "node ", in_quotes(name_text(node)),
                " is no constant, so it has no data");
  }
  auto kept = std::make_unique<const ConstantData>(std::move(data));
  const std::lock_guard lock(described_mutex_);
  payloads_[node] = std::move(kept);
}

}  // namespace bringup::engine
