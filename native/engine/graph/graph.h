// The graph: an ordered list of nodes that ends in one output node, and every way to change it.
//
// Every change is one of the edits of edit.h, journalled while a transaction is open: so a failed
// pass is undone, and a successful one can be repeated on the graph that this one mirrors. One
// thread writes; while it does not, any number may call the const functions.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/graph/argument.h"
#include "engine/graph/edit.h"
#include "engine/graph/host.h"
#include "engine/graph/names.h"
#include "engine/graph/operators.h"
#include "engine/graph/tensor_desc.h"
#include "engine/graph/type_index.h"
#include "engine/graph/user_list.h"
#include "engine/util/error.h"

namespace bringup::engine {

// A new call's arguments: `count` items at the top; `keywords`: empty, or one dict without schema.
struct Call {
  ArgumentSpan items;
  uint32_t count = 0;
  ArgumentSpan keywords = {};
};

struct Attribute {
  StringId name;
  ArgumentSpan item;
};

struct Subgraph {
  StringId name;
  std::shared_ptr<Graph> graph;
};

class Graph : public std::enable_shared_from_this<Graph> {
 public:
  explicit Graph(std::string_view name);
  ~Graph();
  Graph& operator=(Graph&&) = delete;

  // Reading. A NodeId that this graph never gave out throws; an erased one is refused only by what
  // changes the graph, and keeps its name, operator and arguments. Spans are valid until a change.

  std::string_view name() const { return name_; }
  void set_name(std::string_view name) { name_ = name; }
  // Whether values are memory, which results may come to share: not in ONNX.
  bool values_are_memory() const { return values_are_memory_; }
  void set_values_are_memory(bool are) { values_are_memory_ = are; }
  size_t size() const { return alive_; }
  // How many NodeIds were given out; all are smaller.
  NodeId end() const { return static_cast<NodeId>(nodes_.size()); }
  NodeId first() const { return first_; }
  NodeId last() const { return kOutput; }  // the output node
  NodeId next(NodeId node) const { return at(node).next; }
  NodeId previous(NodeId node) const { return at(node).previous; }
  bool alive(NodeId node) const { return node < nodes_.size() && nodes_[node].alive; }
  // Grows along the graph; changes when nodes are inserted.
  int64_t order(NodeId node) const { return at(node).order; }
  bool is_before(NodeId one, NodeId other) const { return order(one) < order(other); }
  const Operator& op(NodeId node) const { return *at(node).op; }
  StringId type(NodeId node) const { return at(node).op->type; }
  StringId name(NodeId node) const {
    const StringId known = name_of(at(node)).load(std::memory_order_acquire);
    return known != kNoString ? known : learn_name(node);
  }
  std::string_view name_text(NodeId node) const { return Strings::text(name(node)); }
  // Whether the name of a node was asked for yet, or made when the node was.
  bool is_named(NodeId node) const {
    return name_of(at(node)).load(std::memory_order_acquire) != kNoString;
  }
  // What a copy of a node is to be called: the name that was asked for, else its base.
  StringId wanted_name(NodeId node) const;
  // The pass that made the node; kNoString: none did.
  StringId rule(NodeId node) const { return at(node).rule; }
  // Whether some call writes memory, or its effects are unknown.
  bool has_effects() const { return effects_ > 0; }
  // Whether the call only computes its outputs, asking the host about a random operator.
  bool pure(NodeId node) const;

  ArgumentSpan arguments(NodeId node) const { return items_of(at(node).arguments); }
  uint32_t argument_count(NodeId node) const { return at(node).arguments.count; }
  // Empty, or one dict.
  ArgumentSpan keywords(NodeId node) const { return keywords_of(at(node).arguments); }
  // Both, side by side.
  ArgumentSpan all_arguments(NodeId node) const { return all_of(at(node).arguments); }
  const ArgumentRange& argument_range(NodeId node) const { return at(node).arguments; }
  ArgumentSpan items_of(const ArgumentRange& range) const;
  ArgumentSpan keywords_of(const ArgumentRange& range) const;
  ArgumentSpan all_of(const ArgumentRange& range) const;

  uint32_t output_count(NodeId node) const { return at(node).output_count; }
  bool has(ValueId value) const {
    return alive(value.node) && value.index < output_count(value.node);
  }
  // The number of a value among all of the graph, dense, never used again.
  uint32_t slot(ValueId value) const;
  // Who reads a value, each once, in no order; `use_count` counts every read.
  std::span<const NodeId> users(ValueId value) const { return value_at(value).users.nodes(); }
  size_t use_count(ValueId value) const { return value_at(value).reads; }
  // The same in graph order; of all outputs of a node.
  std::vector<NodeId> sorted_users(ValueId value) const;
  std::vector<NodeId> sorted_users(NodeId node) const;
  // Whether anything reads an output of the node; constant time, unlike the lists.
  bool has_users(NodeId node) const;

  // All nodes of one type in graph order.
  std::span<const NodeId> find(StringId type) const { return types_.find(type); }
  size_t count(StringId type) const { return types_.count(type); }
  // What stands at each position of the calls of one type.
  std::span<const ArgumentForms> forms(StringId type) const { return types_.forms(type); }
  NodeId find_by_name(std::string_view name) const;
  // What the graph is called with, and what it returns, flattened.
  std::vector<ValueId> inputs() const;
  std::vector<ValueId> outputs() const;

  // The host's handle of its own description of a value; 0: none.
  uint64_t meta(ValueId value) const { return value_at(value).meta; }
  // By value; null when unknown. The host is asked once, until the handle is changed.
  const TensorDesc* desc(ValueId value) const;
  // The data of a constant; null when passes may not look into it. The host is asked once.
  const ConstantData* payload(NodeId node) const;
  // Control edges lead to a node from those that run before it without being read: from operators
  // and inputs to operators. The inputs in the order given, the users in graph order.
  bool has_control_edges() const { return !controls_.empty(); }
  bool has_control_edge(NodeId source, NodeId target) const;
  std::vector<NodeId> control_inputs(NodeId node) const;
  std::vector<NodeId> control_users(NodeId node) const;
  std::vector<Attribute> attributes(NodeId node) const;
  std::optional<ArgumentSpan> attribute(NodeId node, StringId name) const;
  std::vector<Subgraph> subgraphs(NodeId node) const;
  // The graph that has this one as a subgraph, and the node in it; null and kNoNode: none.
  Graph* parent_graph() const { return parent_; }
  NodeId parent_node() const { return parent_node_; }

  // Changing. All throw EngineError and change nothing when that cannot be done.

  void set_host(std::shared_ptr<Host> host) { host_ = std::move(host); }
  Host* host() const { return host_.get(); }
  void reserve(size_t nodes);
  // A new input after those there are.
  NodeId add_input(StringId base);
  // A new constant before `before`; kNoNode: before the first node that computes.
  NodeId add_constant(StringId base, NodeId before = kNoNode);
  // A new node in front of `before`, called `base` or with a number after it.
  NodeId insert(const Operator* op, StringId base, const Call& call, uint32_t output_count,
                NodeId before);
  // A new node at the end, for a host that mirrors a graph of its own. What is read must be there
  // already. The host is asked for its name on demand; while there are nodes
  // whose names are unknown, those of new ones are made on demand, too.
  NodeId append(const Operator* op, const Call& call, uint32_t output_count);
  // The same in two steps, for a host that infers from the call: a draft's values cannot be read.
  NodeId draft(const Operator* op, StringId base, const Call& call);
  void insert_draft(NodeId node, uint32_t output_count, NodeId before);
  void discard_draft(NodeId node);
  bool is_draft(NodeId node) const { return at(node).draft; }
  void rewire(NodeId node, const Call& call);
  // Let every reader of `old`, the node of `now` excepted, read `now`.
  void replace_all_uses(ValueId old, ValueId now);
  // What the graph returns.
  void set_outputs(const Call& call) { rewire(kOutput, call); }
  // Refused while a node reads it or must run after it.
  void erase(NodeId node);
  // Those of `candidates`, and what only they read, that are pure and unread.
  void erase_dead(std::span<const NodeId> candidates);
  void move_before(NodeId node, NodeId before);
  void set_control_inputs(NodeId node, std::span<const NodeId> before);
  // One more, unless there is that edge already.
  void add_control_edge(NodeId source, NodeId target);
  // Refused where there is no such edge.
  void remove_control_edge(NodeId source, NodeId target);
  // `item` is one item; nothing removes the attribute.
  void set_attribute(NodeId node, StringId name, ArgumentSpan item);
  // Null removes it. A graph is a subgraph of one node at most.
  void set_subgraph(NodeId node, StringId name, std::shared_ptr<Graph> graph);
  // Undone by a rollback, but no edit: what is mirrored has descriptions of its own.
  void set_meta(ValueId value, uint64_t meta);
  void set_payload(NodeId node, ConstantData data);
  // Another operator and arguments for a node; not within a transaction.
  void set_operator(NodeId node, const Operator* op, const Call& call);

  // Transactions. One at a time; `rule` is stamped on the nodes that are made.

  void begin(StringId rule);
  bool in_transaction() const { return open_; }
  StringId rule() const { return rule_; }
  // The edits of the open transaction.
  std::span<const Edit> journal() const { return journal_; }
  // Closes it and returns its edits, whose arguments stay readable as long as the graph lives.
  std::vector<Edit> commit();
  // Closes it and undoes everything, the last edit first.
  void rollback();
  // How far the open transaction has come; rollback_to undoes what came after it.
  struct Savepoint {
    size_t edits = 0;
    size_t metas = 0;
  };
  Savepoint savepoint() const { return {journal_.size(), former_metas_.size()}; }
  void rollback_to(const Savepoint& savepoint);

 private:
  static constexpr NodeId kOutput = 0;

  struct Node {
    const Operator* op = nullptr;
    int64_t order = 0;
    mutable StringId name = kEmptyString;  // kNoString: not asked for; see name_of
    StringId base = kNoString;             // what the name is made from; kNoString: the host's
    StringId rule = kNoString;
    NodeId previous = kNoNode;
    NodeId next = kNoNode;
    ArgumentRange arguments;
    uint32_t first_value = 0;
    uint32_t output_count = 0;
    bool alive = false;
    bool draft = false;
  };

  struct Value {
    UserList users;
    uint64_t meta = 0;
    uint32_t reads = 0;
  };

  struct FormerMeta {
    ValueId value;
    uint64_t meta;
  };

  const Node& at(NodeId node) const;
  const Value& value_at(ValueId value) const { return values_[slot(value)]; }
  Value& value_at(ValueId value) { return values_[slot(value)]; }
  void require_alive(NodeId node, const char* what) const;
  void require_call(const Call& call) const;

  static std::atomic_ref<StringId> name_of(const Node& node) {
    return std::atomic_ref<StringId>(node.name);
  }
  StringId learn_name(NodeId node) const;
  void learn_names() const;
  void name_node(NodeId node) const;

  void require_draft(NodeId node) const;
  void place(NodeId draft, uint32_t output_count, NodeId before);
  ArgumentRange keep(const Call& call);
  void apply(const Edit& edit);
  void perform(const Edit& edit);
  void undo(const Edit& edit);
  void attach(NodeId node, NodeId before, const ArgumentRange& arguments);
  void detach(NodeId node);
  void exchange(NodeId node, const ArgumentRange& arguments);
  void count_reads(NodeId node);
  void uncount_reads(NodeId node);
  void link(NodeId node, NodeId before);
  void unlink(NodeId node);
  void renumber();

  void require_control_edge(NodeId source, NodeId target) const;
  void put_control(NodeId node, const ArgumentRange& range);
  void put_attribute(NodeId node, StringId name, const ArgumentRange& range);
  void put_subgraph(NodeId node, StringId name, const ArgumentRange& range);
  void write_meta(ValueId value, uint64_t meta);
  ArgumentRange attribute_range(NodeId node, StringId name) const;
  ArgumentRange subgraph_range(NodeId node, StringId name) const;
  ArgumentRange control_range(NodeId node) const;

  struct Named {
    StringId name;
    ArgumentRange range;
  };
  using NamedRanges = std::unordered_map<NodeId, std::vector<Named>>;
  static ArgumentRange find_named(const NamedRanges& all, NodeId node, StringId name);
  static void put_named(NamedRanges& all, NodeId node, StringId name, const ArgumentRange& range);

  std::string name_;
  bool values_are_memory_ = true;
  std::vector<Node> nodes_;
  std::vector<Value> values_;
  std::vector<Argument> arguments_;  // only grows: a graph lives as long as one compilation
  size_t alive_ = 0;
  mutable Names names_;  // of the nodes that stand in the graph and are named
  mutable std::mutex naming_mutex_;
  mutable std::atomic<size_t> unnamed_ = 0;  // how many stand in the graph and are not
  TypeIndex types_{*this};
  size_t effects_ = 0;  // how many calls write memory or are opaque
  NodeId first_ = kOutput;

  std::unordered_map<NodeId, ArgumentRange> controls_;
  std::unordered_map<NodeId, std::vector<NodeId>> control_users_;
  NamedRanges attributes_;
  NamedRanges subgraphs_;
  std::vector<std::shared_ptr<Graph>> subgraph_list_;
  Graph* parent_ = nullptr;
  NodeId parent_node_ = kNoNode;

  bool open_ = false;
  StringId rule_ = kNoString;
  std::vector<Edit> journal_;
  std::vector<FormerMeta> former_metas_;

  std::shared_ptr<Host> host_;
  mutable std::mutex described_mutex_;
  mutable std::unordered_map<ValueId, std::unique_ptr<const TensorDesc>> descs_;
  mutable std::unordered_map<NodeId, std::unique_ptr<const ConstantData>> payloads_;
};

}  // namespace bringup::engine
