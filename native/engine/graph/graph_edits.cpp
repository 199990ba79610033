// The edits of a graph, and undoing them.
#include <unordered_set>
#include <utility>

#include "engine/graph/graph.h"

namespace bringup::engine {
namespace {

constexpr int64_t kOrderStep = int64_t{1} << 32;  // room for 32 insertions at one place

std::string shown(const Graph& graph, NodeId node) {
  return "node " + in_quotes(graph.name_text(node));
}

}  // namespace

void Graph::require_alive(NodeId node, const char* what) const {
  if (alive(node)) return;
  at(node);
  throw_error(ErrorCode::kExpired, shown(*this, node), " was erased, so it cannot be ", what);
}

void Graph::require_call(const Call& call) const {
  const bool fits = well_formed(call.items, call.count) &&
                    (call.keywords.empty() ||
                     (call.keywords.front().tag == Tag::kDict && well_formed(call.keywords, 1)));
  if (!fits) throw_error(ErrorCode::kInvalid, "the arguments are not in prefix form");
  const auto check = [&](ValueId value) {
    require_alive(value.node, "read");
    slot(value);
  };
  for_each_value(call.items, check);
  for_each_value(call.keywords, check);
}

// Copies: the spans may point into `arguments_`, which grows.
ArgumentRange Graph::keep(const Call& call) {
  ArgumentRange range;
  range.first = static_cast<uint32_t>(arguments_.size());
  range.extent = static_cast<uint32_t>(call.items.size());
  range.keyword_extent = static_cast<uint32_t>(call.keywords.size());
  range.count = call.count;
  const size_t needed = arguments_.size() + range.extent + range.keyword_extent;
  if (needed > UINT32_MAX) throw_error(ErrorCode::kInvalid, "too many arguments in one graph");
  if (needed > arguments_.capacity()) {
    std::vector<Argument> larger;
    larger.reserve(needed + needed / 2);
    larger.assign(arguments_.begin(), arguments_.end());
    larger.insert(larger.end(), call.items.begin(), call.items.end());
    larger.insert(larger.end(), call.keywords.begin(), call.keywords.end());
    arguments_ = std::move(larger);
    return range;
  }
  for (const Argument& item : call.items) arguments_.push_back(item);
  for (const Argument& item : call.keywords) arguments_.push_back(item);
  return range;
}

NodeId Graph::draft(const Operator* op, StringId base, const Call& call) {
  require_call(call);
  Node node;
  node.op = op;
  node.base = base;
  node.name = unnamed_ == 0 ? names_.unique(base) : kNoString;
  node.rule = open_ ? rule_ : kNoString;
  node.arguments = keep(call);
  node.draft = true;
  nodes_.push_back(node);
  return static_cast<NodeId>(nodes_.size() - 1);
}

void Graph::require_draft(NodeId node) const {
  if (at(node).draft) return;
  throw_error(ErrorCode::kInvalid, shown(*this, node), " is no draft");
}

void Graph::discard_draft(NodeId node) {
  require_draft(node);
  nodes_[node].draft = false;
}

void Graph::insert_draft(NodeId node, uint32_t output_count, NodeId before) {
  require_draft(node);
  require_alive(before, "inserted before");
  require_call({items_of(nodes_[node].arguments), nodes_[node].arguments.count,
                keywords_of(nodes_[node].arguments)});
  place(node, output_count, before);
}

void Graph::place(NodeId node, uint32_t output_count, NodeId before) {
  nodes_[node].draft = false;
  nodes_[node].first_value = static_cast<uint32_t>(values_.size());
  nodes_[node].output_count = output_count;
  values_.resize(values_.size() + output_count);
  Edit edit{EditKind::kInsert, node, before};
  edit.now = nodes_[node].arguments;
  apply(edit);
}

NodeId Graph::insert(const Operator* op, StringId base, const Call& call, uint32_t output_count,
                     NodeId before) {
  require_alive(before, "inserted before");
  const NodeId node = draft(op, base, call);
  place(node, output_count, before);
  return node;
}

NodeId Graph::append(const Operator* op, const Call& call, uint32_t output_count) {
  const ArgumentRange arguments = keep(call);
  const auto node = static_cast<NodeId>(nodes_.size());
  Node& made = nodes_.emplace_back();
  made.op = op;
  made.name = kNoString;
  made.alive = true;
  made.arguments = arguments;
  made.first_value = static_cast<uint32_t>(values_.size());
  made.output_count = output_count;
  values_.resize(values_.size() + output_count);
  unnamed_.fetch_add(1, std::memory_order_relaxed);
  ++alive_;
  link(node, kOutput);
  types_.add(op->type, node);
  effects_ += op->has_effects() ? 1 : 0;
  count_reads(node);
  return node;
}

NodeId Graph::add_input(StringId base) {
  const std::span<const NodeId> existing = find(Operators::input()->type);
  const NodeId before = existing.empty() ? first_ : next(existing.back());
  return insert(Operators::input(), base, {}, 1, before);
}

NodeId Graph::add_constant(StringId base, NodeId before) {
  if (before == kNoNode) {
    before = first_;
    while (nodes_[before].op == Operators::input() || nodes_[before].op == Operators::constant()) {
      before = nodes_[before].next;
    }
  }
  return insert(Operators::constant(), base, {}, 1, before);
}

void Graph::rewire(NodeId node, const Call& call) {
  require_alive(node, "rewired");
  require_call(call);
  Edit edit{EditKind::kRewire, node};
  edit.old = nodes_[node].arguments;
  edit.now = keep(call);
  apply(edit);
}

void Graph::replace_all_uses(ValueId old, ValueId now) {
  require_alive(old.node, "replaced");
  require_alive(now.node, "read");
  slot(now);
  for (const NodeId user : sorted_users(old)) {
    if (user == now.node) continue;
    const ArgumentRange range = nodes_[user].arguments;
    std::vector<Argument> items(all_of(range).begin(), all_of(range).end());
    for (Argument& item : items) {
      if (item.tag == Tag::kValue && item.value == old) item.value = now;
    }
    const ArgumentSpan all(items);
    rewire(user, {all.first(range.extent), range.count, all.subspan(range.extent)});
  }
}

void Graph::erase(NodeId node) {
  require_alive(node, "erased");
  if (node == kOutput) {
    throw_error(ErrorCode::kInvalid, "the output node of a graph cannot be erased");
  }
  if (has_users(node)) {
    throw_error(ErrorCode::kInvalid, shown(*this, node),
                " cannot be erased: ", in_quotes(name_text(sorted_users(node).front())),
                " still reads it; replace its uses first");
  }
  const std::vector<NodeId> later = control_users(node);
  if (!later.empty()) {
    throw_error(ErrorCode::kInvalid, shown(*this, node),
                " cannot be erased: ", in_quotes(name_text(later.front())),
                " has a control edge from it; remove the edge first");
  }
  if (controls_.contains(node)) set_control_inputs(node, {});
  for (const Subgraph& subgraph : subgraphs(node)) set_subgraph(node, subgraph.name, nullptr);
  Edit edit{EditKind::kErase, node, nodes_[node].next};
  edit.old = nodes_[node].arguments;
  apply(edit);
}

void Graph::erase_dead(std::span<const NodeId> candidates) {
  std::vector<NodeId> agenda(candidates.begin(), candidates.end());
  std::unordered_set<NodeId> held;  // by nothing but what must run after them
  while (!agenda.empty()) {
    const NodeId node = agenda.back();
    agenda.pop_back();
    if (!alive(node) || node == kOutput || type(node) == Operators::input()->type) continue;
    if (has_users(node) || !pure(node)) continue;
    if (!control_users(node).empty()) {
      held.insert(node);
      continue;
    }
    std::vector<NodeId> producers;
    for_each_value(all_arguments(node), [&](ValueId value) { producers.push_back(value.node); });
    for (const NodeId input : control_inputs(node)) {
      if (held.contains(input)) producers.push_back(input);
    }
    erase(node);
    agenda.insert(agenda.end(), producers.begin(), producers.end());
  }
}

void Graph::move_before(NodeId node, NodeId before) {
  require_alive(node, "moved");
  require_alive(before, "moved to");
  if (node == kOutput) {
    throw_error(ErrorCode::kInvalid, "the output node of a graph cannot be moved");
  }
  if (nodes_[node].next == before || node == before) return;
  apply({EditKind::kMove, node, before, nodes_[node].next});
}

void Graph::set_operator(NodeId node, const Operator* op, const Call& call) {
  if (open_) throw_error(ErrorCode::kBusy, "an operator cannot be exchanged within a transaction");
  require_alive(node, "given another operator");
  require_call(call);
  const ArgumentRange range = keep(call);
  const StringId former = nodes_[node].op->type;
  effects_ -= nodes_[node].op->has_effects() ? 1 : 0;
  effects_ += op->has_effects() ? 1 : 0;
  nodes_[node].op = op;
  types_.remove(former);
  types_.add(op->type, node);
  exchange(node, range);
}

// Transactions

void Graph::begin(StringId rule) {
  if (open_) {
    throw_error(ErrorCode::kBusy, "graph ", in_quotes(name_), " is already being edited by ",
                in_quotes(Strings::text(rule_)));
  }
  open_ = true;
  rule_ = rule == kEmptyString ? kNoString : rule;
}

std::vector<Edit> Graph::commit() {
  if (!open_) throw_error(ErrorCode::kBusy, "graph ", in_quotes(name_), " is not being edited");
  open_ = false;
  rule_ = kNoString;
  former_metas_.clear();
  return std::exchange(journal_, {});
}

void Graph::rollback() {
  if (!open_) throw_error(ErrorCode::kBusy, "graph ", in_quotes(name_), " is not being edited");
  rollback_to({});
  open_ = false;
  rule_ = kNoString;
}

void Graph::rollback_to(const Savepoint& savepoint) {
  while (journal_.size() > savepoint.edits) {
    undo(journal_.back());
    journal_.pop_back();
  }
  while (former_metas_.size() > savepoint.metas) {
    write_meta(former_metas_.back().value, former_metas_.back().meta);
    former_metas_.pop_back();
  }
}

void Graph::apply(const Edit& edit) {
  perform(edit);
  if (open_) journal_.push_back(edit);
}

void Graph::perform(const Edit& edit) {
  switch (edit.kind) {
    case EditKind::kInsert:
      return attach(edit.node, edit.before, edit.now);
    case EditKind::kErase:
      return detach(edit.node);
    case EditKind::kMove:
      unlink(edit.node);
      link(edit.node, edit.before);
      return types_.moved(type(edit.node));
    case EditKind::kRewire:
      return exchange(edit.node, edit.now);
    case EditKind::kControl:
      return put_control(edit.node, edit.now);
    case EditKind::kAttribute:
      return put_attribute(edit.node, edit.name, edit.now);
    case EditKind::kSubgraph:
      return put_subgraph(edit.node, edit.name, edit.now);
  }
}

void Graph::undo(const Edit& edit) {
  Edit inverse = edit;
  std::swap(inverse.old, inverse.now);
  if (edit.kind == EditKind::kInsert) inverse.kind = EditKind::kErase;
  if (edit.kind == EditKind::kErase) inverse.kind = EditKind::kInsert;
  if (edit.kind == EditKind::kMove) std::swap(inverse.before, inverse.origin);
  perform(inverse);
}

void Graph::attach(NodeId node, NodeId before, const ArgumentRange& arguments) {
  nodes_[node].alive = true;
  nodes_[node].arguments = arguments;
  ++alive_;
  link(node, before);
  if (is_named(node)) {  // another may be called so by now
    nodes_[node].name = names_.unique(nodes_[node].name);
    names_.add(nodes_[node].name, node);
  } else {
    ++unnamed_;
  }
  types_.add(type(node), node);
  effects_ += op(node).has_effects() ? 1 : 0;
  count_reads(node);
}

void Graph::detach(NodeId node) {
  uncount_reads(node);
  if (is_named(node)) {
    names_.remove(nodes_[node].name);
  } else {
    --unnamed_;
  }
  --alive_;
  types_.remove(type(node));
  effects_ -= op(node).has_effects() ? 1 : 0;
  unlink(node);
  nodes_[node].alive = false;
}

void Graph::exchange(NodeId node, const ArgumentRange& arguments) {
  uncount_reads(node);
  nodes_[node].arguments = arguments;
  types_.rewired(type(node));
  count_reads(node);
}

void Graph::count_reads(NodeId node) {
  for_each_value(all_arguments(node), [&](ValueId read) {
    Value& value = value_at(read);
    value.users.add(node);
    ++value.reads;
  });
}

void Graph::uncount_reads(NodeId node) {
  for_each_value(all_arguments(node), [&](ValueId read) {
    Value& value = value_at(read);
    value.users.remove(node);
    --value.reads;
  });
}

// Order

void Graph::link(NodeId node, NodeId before) {
  const NodeId previous = nodes_[before].previous;
  nodes_[node].previous = previous;
  nodes_[node].next = before;
  nodes_[before].previous = node;
  if (previous == kNoNode) {
    first_ = node;
    nodes_[node].order = nodes_[before].order - kOrderStep;
    return;
  }
  nodes_[previous].next = node;
  const int64_t low = nodes_[previous].order;
  if (before == kOutput) nodes_[before].order = low + 2 * kOrderStep;
  nodes_[node].order = low + (nodes_[before].order - low) / 2;
  if (nodes_[node].order == low) renumber();
}

void Graph::unlink(NodeId node) {
  const NodeId previous = nodes_[node].previous;
  const NodeId next = nodes_[node].next;
  if (previous == kNoNode) {
    first_ = next;
  } else {
    nodes_[previous].next = next;
  }
  if (next != kNoNode) nodes_[next].previous = previous;
  nodes_[node].previous = nodes_[node].next = kNoNode;
}

void Graph::renumber() {
  int64_t order = 0;
  for (NodeId node = first_; node != kNoNode; node = nodes_[node].next) {
    nodes_[node].order = order += kOrderStep;
  }
}

}  // namespace bringup::engine
