#include "engine/rewrite/rewriter.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "engine/analysis/control.h"
#include "engine/graph/node_factory.h"
#include "engine/pattern/pattern_elements.h"
#include "engine/util/error.h"
#include "engine/util/outcome.h"

namespace bringup::engine {
namespace {

std::string counted(size_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

// One replacement being copied into a graph.
class Copy {
 public:
  Copy(Graph& graph, const Graph& replacement, const Site& site, AliasAnalysis& aliases,
       const Providers& providers)
      : graph_(graph),
        replacement_(replacement),
        site_(site),
        aliases_(aliases),
        providers_(providers) {}

  std::vector<NodeId> run() {
    check_counts();
    collect_attributes();
    const std::vector<ValueId> inputs = replacement_.inputs();
    const std::vector<ValueId> outputs = replacement_.outputs();
    for (size_t index = 0; index < outputs.size(); ++index) {
      stands_for_[outputs[index]] = site_.outputs[index];
    }
    for (size_t index = 0; index < inputs.size(); ++index) {
      copies_[inputs[index]] = site_.inputs[index];
    }
    for (NodeId node = replacement_.first(); node != replacement_.last();
         node = replacement_.next(node)) {
      if (&replacement_.op(node) != Operators::input()) copy_node(node);
    }
    copy_control_edges();
    std::vector<ValueId> results = mapped_outputs();
    for (ValueId& result : results) result = unwritten(result);
    move_control_edges(graph_, site_.nodes, {made_, site_.outputs, results});
    for (size_t index = 0; index < results.size(); ++index) {
      exchange(graph_, site_.outputs[index], results[index], providers_);
      aliases_.replaced(site_.outputs[index], results[index]);
    }
    graph_.erase_dead(site_.nodes);
    report_values_that_stay(results);
    return std::move(made_);
  }

 private:
  void check_counts() const {
    const size_t inputs = replacement_.inputs().size();
    if (inputs > site_.inputs.size()) {
      throw_error(ErrorCode::kPass, "the replacement ", in_quotes(replacement_.name()), " has ",
                  counted(inputs, "input"), ", what it replaces has ", site_.inputs.size());
    }
    const size_t outputs = replacement_.outputs().size();
    if (outputs != site_.outputs.size()) {
      throw_error(ErrorCode::kPass, "the replacement ", in_quotes(replacement_.name()), " has ",
                  counted(outputs, "output"), ", what it replaces has ", site_.outputs.size());
    }
  }

  std::vector<ValueId> mapped_outputs() const {
    std::vector<ValueId> results;
    for (const ValueId output : replacement_.outputs()) {
      results.push_back(mapped(output));
      if (results.back().node != kNoNode) continue;
      throw_error(ErrorCode::kPass, "output ", results.size() - 1, " of the replacement ",
                  in_quotes(replacement_.name()), " is an input that stands for nothing here");
    }
    return results;
  }

  // What stands for a result is read there, so nothing may write it before: it may be copied.
  ValueId unwritten(ValueId result) {
    const NodeId writer = aliases_.writer_between(result, site_.before, graph_.last());
    if (writer == kNoNode) return result;
    if (providers_.copy_of) {
      const ValueId copy = providers_.copy_of(graph_, result, site_.before);
      aliases_.record(copy.node);
      return copy;
    }
    throw SkipPass(concat("the replacement returns ", in_quotes(graph_.name_text(result.node)),
                          ", whose memory ", in_quotes(graph_.name_text(writer)),
                          " writes later on: copy it"));
  }

  void report_values_that_stay(std::span<const ValueId> results) const {
    if (!providers_.stays) return;
    for (size_t index = 0; index < results.size(); ++index) {
      const ValueId old = site_.outputs[index], now = results[index];
      if (graph_.alive(old.node) && graph_.alive(now.node)) providers_.stays(graph_, old, now);
    }
  }

  // What the replaced nodes agree on.
  void collect_attributes() {
    for (const NodeId node : site_.nodes) {
      for (const Attribute& attribute : graph_.attributes(node)) {
        if (attribute.name == origin_attribute()) continue;
        const auto [place, is_new] = inherited_attributes_.try_emplace(
            attribute.name, std::vector<Argument>(attribute.item.begin(), attribute.item.end()));
        if (is_new) attribute_sources_[attribute.name] = node;
        if (is_new || same(place->second, attribute.item)) continue;
        throw_error(ErrorCode::kPass, "nodes ",
                    in_quotes(graph_.name_text(attribute_sources_[attribute.name])), " and ",
                    in_quotes(graph_.name_text(node)), " differ in their attribute ",
                    in_quotes(Strings::text(attribute.name)),
                    ", so one replacement cannot stand for both");
      }
    }
  }

  void copy_node(NodeId original) {
    if (&replacement_.op(original) == outer_operator()) {
      copies_[{original, 0}] = outer_value(replacement_, original, graph_);
      return;
    }
    const bool is_constant = &replacement_.op(original) == Operators::constant();
    const NodeId node = is_constant ? copy_constant(original) : insert(original);
    if (!is_constant) {
      own_.insert(node);
      calls_.emplace(original, node);
      for (const auto& [name, item] : inherited_attributes_) graph_.set_attribute(node, name, item);
    }
    for (const Attribute& attribute : replacement_.attributes(original)) {
      graph_.set_attribute(node, attribute.name, attribute.item);
    }
    const uint32_t outputs =
        std::min(replacement_.output_count(original), graph_.output_count(node));
    for (uint32_t index = 0; index < outputs; ++index) copies_[{original, index}] = {node, index};
    made_.push_back(node);
    aliases_.record(node);
  }

  // An input or outer value is a node's here; nothing waits for what is there from the start.
  void copy_control_edges() {
    if (!replacement_.has_control_edges()) return;
    for (const auto& [original, node] : calls_) {
      for (const NodeId source : replacement_.control_inputs(original)) {
        const NodeId before = source_of(source);
        if (before == kNoNode) continue;
        const Operator* op = &graph_.op(before);
        if (op == Operators::input() || op == Operators::constant()) continue;
        graph_.add_control_edge(before, node);
      }
    }
  }

  NodeId source_of(NodeId source) const {
    const auto place = calls_.find(source);
    if (place != calls_.end()) return place->second;
    return mapped({source, 0}).node;
  }

  NodeId copy_constant(NodeId original) {
    const StringId base = replacement_.name(original);
    if (providers_.copy) {
      const Operator* op = &replacement_.op(original);
      return providers_.copy(
          graph_, {replacement_, original, op, Call(), 1, site_.before, site_.nodes, ValueId()});
    }
    const ConstantData* data = replacement_.payload(original);
    return data == nullptr ? graph_.add_constant(base)
                           : insert_constant(graph_, base, *data, providers_);
  }

  NodeId insert(NodeId original) {
    ArgumentList bound, keywords;
    put_mapped(replacement_.arguments(original), bound);
    put_mapped(replacement_.keywords(original), keywords);
    const Operator* op = &replacement_.op(original);
    uint32_t outputs = replacement_.output_count(original);
    if (providers_.only_rewritten) {
      // What was unchecked while it was made is bound now.
      op = providers_.schema(graph_, op->type, bound);
      if (op->output_count >= 0) outputs = static_cast<uint32_t>(op->output_count);
    }
    check_writes(*op, bound.items());
    const Call call{bound.items(), bound.count(), keywords.items()};
    if (providers_.copy) {
      return providers_.copy(graph_, {replacement_, original, op, call, outputs, site_.before,
                                      site_.nodes, replaced_by(original)});
    }
    const NodeId node = graph_.insert(op, base_name_of(op->type), call, outputs, site_.before);
    graph_.set_attribute(node, origin_attribute(), origin().items());
    infer_if_known(graph_, node, providers_);
    return node;
  }

  // What the only output of a node of the replacement stands for.
  ValueId replaced_by(NodeId original) const {
    if (replacement_.output_count(original) != 1) return ValueId();
    const auto found = stands_for_.find({original, 0});
    return found == stands_for_.end() ? ValueId() : found->second;
  }

  void check_writes(const Operator& op, ArgumentSpan items) const {
    for (const uint32_t index : op.mutates) {
      for_each_value(item(items, index), [&](ValueId value) {
        if (own_.contains(value.node)) return;
        throw_error(ErrorCode::kPass, "the replacement writes ",
                    in_quotes(graph_.name_text(value.node)), ", which it did not make itself (",
                    Strings::text(op.type), "): others read it too");
      });
    }
  }

  ValueId mapped(ValueId value) const {
    const auto place = copies_.find(value);
    if (place != copies_.end()) return place->second;
    throw_error(ErrorCode::kPass, "the replacement ", in_quotes(replacement_.name()),
                " reads a value before ", in_quotes(replacement_.name_text(value.node)),
                " computes it");
  }

  // Copies whole items, values exchanged for what stands for them here.
  void put_mapped(ArgumentSpan items, ArgumentList& list) {
    for (size_t position = 0; position < items.size();) {
      const Argument& head = items[position];
      const ArgumentSpan whole = item_at(items, position);
      position += whole.size();
      if (head.is_nest()) {
        list.open(head.tag);
        put_mapped(whole.subspan(1), list);
        list.close();
      } else if (head.tag == Tag::kValue) {
        const ValueId now = mapped(head.value);
        list.put(now.node == kNoNode ? Argument::none() : Argument::of_value(now));
      } else if (providers_.carry_over && (head.tag == Tag::kOpaque || head.tag == Tag::kSymbol)) {
        providers_.carry_over(graph_, head, site_.before, list);
      } else {
        list.put(head);
      }
    }
  }

  // The names of the nodes that are replaced.
  ArgumentList origin() const {
    ArgumentList names;
    names.open(Tag::kList);
    for (const NodeId replaced : site_.nodes) names.put(Argument::of_string(graph_.name(replaced)));
    names.close();
    return names;
  }

  Graph& graph_;
  const Graph& replacement_;
  const Site& site_;
  AliasAnalysis& aliases_;
  const Providers& providers_;
  std::unordered_map<ValueId, ValueId> copies_;
  std::unordered_map<ValueId, ValueId> stands_for_;  // outputs of the replacement
  std::unordered_map<StringId, std::vector<Argument>> inherited_attributes_;
  std::unordered_map<StringId, NodeId> attribute_sources_;
  std::map<NodeId, NodeId> calls_;  // new ones by their original
  std::unordered_set<NodeId> own_;  // new nodes whose memory is their own
  std::vector<NodeId> made_;
};

}  // namespace

std::vector<NodeId> replace(Graph& graph, const Graph& replacement, const Site& site,
                            AliasAnalysis& aliases, const Providers& providers) {
  return Copy(graph, replacement, site, aliases, providers).run();
}

std::vector<NodeId> replace(Graph& graph, const Graph& replacement, const Boundary::Part& part,
                            AliasAnalysis& aliases, const Providers& providers) {
  for (const NodeId node : part.hoist) graph.move_before(node, part.before);
  return replace(graph, replacement, part.site(), aliases, providers);
}

}  // namespace bringup::engine
