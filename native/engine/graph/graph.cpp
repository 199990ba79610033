// Making and reading a graph; graph_edits.cpp has the edits, graph_tables.cpp what few nodes have.
#include "engine/graph/graph.h"

#include <algorithm>
#include <utility>

namespace bringup::engine {
namespace {

void sort_unique(const Graph& graph, std::vector<NodeId>& nodes) {
  std::sort(nodes.begin(), nodes.end(),
            [&](NodeId one, NodeId other) { return graph.is_before(one, other); });
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
}

}  // namespace

Graph::Graph(std::string_view name) : name_(name) {
  const NodeId output = draft(Operators::output(), Strings::intern("output"), {});
  nodes_[output].draft = false;
  nodes_[output].alive = true;
  alive_ = 1;
  names_.add(nodes_[output].name, output);
  types_.add(nodes_[output].op->type, output);
}

Graph::~Graph() {
  for (const std::shared_ptr<Graph>& child : subgraph_list_) {
    if (child->parent_ == this) {
      child->parent_ = nullptr;
      child->parent_node_ = kNoNode;
    }
  }
}

void Graph::reserve(size_t nodes) {
  nodes_.reserve(nodes);
  values_.reserve(nodes);
  arguments_.reserve(4 * nodes);
}

const Graph::Node& Graph::at(NodeId node) const {
  if (node >= nodes_.size()) {
    throw_error(ErrorCode::kMissing, "graph ", in_quotes(name_), " has no node number ", node);
  }
  return nodes_[node];
}

uint32_t Graph::slot(ValueId value) const {
  const Node& node = at(value.node);
  if (value.index >= node.output_count) {
    throw_error(ErrorCode::kMissing, "node ", in_quotes(name_text(value.node)), " has ",
                node.output_count, " outputs, there is no number ", value.index);
  }
  return node.first_value + value.index;
}

StringId Graph::wanted_name(NodeId node) const {
  const Node& found = at(node);
  return is_named(node) || found.base == kNoString ? name(node) : found.base;
}

// The host's names come first: those of new nodes are made to differ from them.
StringId Graph::learn_name(NodeId node) const {
  if (nodes_[node].base != kNoString) learn_names();
  name_node(node);
  return name_of(nodes_[node]).load(std::memory_order_acquire);
}

void Graph::learn_names() const {
  if (unnamed_.load(std::memory_order_acquire) == 0) return;
  {
    const std::lock_guard lock(naming_mutex_);
    names_.reserve(nodes_.size());
  }
  for (const bool are_new : {false, true}) {
    for (NodeId node = first_; node != kNoNode; node = nodes_[node].next) {
      if ((nodes_[node].base != kNoString) == are_new) name_node(node);
    }
  }
}

// The host is asked without a lock: it may wait for one whose owner waits for this one.
void Graph::name_node(NodeId node) const {
  if (is_named(node)) return;
  const Node& unnamed = nodes_[node];
  StringId base = host_ ? host_->name(*this, node) : kNoString;
  if (base == kNoString) base = unnamed.base != kNoString ? unnamed.base : Strings::intern("node");
  const std::lock_guard lock(naming_mutex_);
  if (is_named(node)) return;
  const StringId made = names_.unique(base);
  if (unnamed.alive) {
    names_.add(made, node);
    unnamed_.fetch_sub(1, std::memory_order_release);
  }
  name_of(unnamed).store(made, std::memory_order_release);
}

// The names come first: until they are learnt, a name that is in the graph may be no known string.
NodeId Graph::find_by_name(std::string_view name) const {
  learn_names();
  const std::optional<StringId> known = Strings::find(name);
  return known ? names_.find(*known) : kNoNode;
}

bool Graph::pure(NodeId node) const {
  const Operator& facts = op(node);
  if (facts.pure() || !facts.random) return facts.pure();
  if (!facts.mutates.empty() || facts.kept || facts.opaque) return false;
  return host_ && !host_->draws_random(*this, node);
}

ArgumentSpan Graph::items_of(const ArgumentRange& range) const {
  return ArgumentSpan(arguments_).subspan(range.first, range.extent);
}

ArgumentSpan Graph::keywords_of(const ArgumentRange& range) const {
  return ArgumentSpan(arguments_).subspan(range.first + range.extent, range.keyword_extent);
}

ArgumentSpan Graph::all_of(const ArgumentRange& range) const {
  return ArgumentSpan(arguments_).subspan(range.first, range.extent + range.keyword_extent);
}

std::vector<NodeId> Graph::sorted_users(ValueId value) const {
  const std::span<const NodeId> found = users(value);
  std::vector<NodeId> sorted(found.begin(), found.end());
  sort_unique(*this, sorted);
  return sorted;
}

std::vector<NodeId> Graph::sorted_users(NodeId node) const {
  std::vector<NodeId> sorted;
  for (uint32_t i = 0; i < output_count(node); ++i) {
    const std::span<const NodeId> found = users({node, i});
    sorted.insert(sorted.end(), found.begin(), found.end());
  }
  sort_unique(*this, sorted);
  return sorted;
}

bool Graph::has_users(NodeId node) const {
  for (uint32_t i = 0; i < output_count(node); ++i) {
    if (use_count({node, i}) != 0) return true;
  }
  return false;
}

std::vector<ValueId> Graph::inputs() const {
  std::vector<ValueId> found;
  for (const NodeId node : find(Operators::input()->type)) found.push_back({node, 0});
  return found;
}

std::vector<ValueId> Graph::outputs() const {
  std::vector<ValueId> found;
  for_each_value(all_arguments(kOutput), [&](ValueId value) { found.push_back(value); });
  return found;
}

const TensorDesc* Graph::desc(ValueId value) const {
  if (meta(value) == 0 || !host_) return nullptr;
  {
    const std::lock_guard lock(described_mutex_);
    const auto found = descs_.find(value);
    if (found != descs_.end()) return found->second.get();
  }
  std::optional<TensorDesc> described = host_->describe(*this, value);
  std::unique_ptr<const TensorDesc> kept;
  if (described) kept = std::make_unique<const TensorDesc>(std::move(*described));
  const std::lock_guard lock(described_mutex_);
  return descs_.try_emplace(value, std::move(kept)).first->second.get();
}

const ConstantData* Graph::payload(NodeId node) const {
  if (&op(node) != Operators::constant()) return nullptr;
  {
    const std::lock_guard lock(described_mutex_);
    const auto found = payloads_.find(node);
    if (found != payloads_.end()) return found->second.get();
  }
  if (!host_) return nullptr;
  std::optional<ConstantData> data = host_->constant(*this, node);
  std::unique_ptr<const ConstantData> kept;
  if (data) kept = std::make_unique<const ConstantData>(std::move(*data));
  const std::lock_guard lock(described_mutex_);
  return payloads_.try_emplace(node, std::move(kept)).first->second.get();
}

}  // namespace bringup::engine
