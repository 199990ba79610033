#include "engine/rewrite/folding.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "engine/analysis/alias_analysis.h"
#include "engine/util/error.h"

namespace bringup::engine {
namespace {

// Runs `work` in a transaction that is undone when it throws.
template <class Work>
void transact(Graph& graph, const char* rule, const Commit& commit, Work&& work) {
  graph.begin(Strings::intern(rule));
  try {
    work();
    if (commit && !graph.journal().empty()) commit(graph, graph.journal());
  } catch (...) {
    graph.rollback();
    throw;
  }
  graph.commit();
}

[[noreturn]] void refuse(const Graph& graph, NodeId node, const EngineError& error) {
  throw_error(error.code(), "at ", in_quotes(graph.name_text(node)), " (",
              Strings::text(graph.type(node)), "): ", error.what());
}

bool is_structure(const Graph& graph, NodeId node) {
  const Operator* op = &graph.op(node);
  return op == Operators::input() || op == Operators::constant() || op == Operators::output();
}

class Folding {
 public:
  Folding(Graph& graph, FoldingSteps& steps) : graph_(graph), steps_(steps), aliases_(graph, true) {
    if (!graph.values_are_memory()) return;  // a result may be a constant
    for (const ValueId value : graph.outputs()) returned_.insert(aliases_.root(value));
  }

  uint64_t run() {
    for (NodeId node = graph_.first(); node != graph_.last(); node = graph_.next(node)) {
      if (is_foldable(node)) fold(node);
    }
    for (const NodeId node : folded_) {
      for (uint32_t index = 0; index < graph_.output_count(node); ++index) {
        if (is_read_by_others({node, index})) make_constant({node, index});
      }
    }
    for (auto node = folded_.rbegin(); node != folded_.rend(); ++node) graph_.erase(*node);
    return folded_.size();
  }

 private:
  bool is_foldable(NodeId node) {
    if (is_structure(graph_, node) || graph_.output_count(node) == 0 || !graph_.pure(node)) {
      return false;
    }
    bool reads = false, known = true;
    for_each_value(graph_.all_arguments(node), [&](ValueId value) {
      reads = true;
      known = known && is_known(value);
    });
    return reads && known && is_free(node) && steps_.can_fold(node);
  }

  bool is_known(ValueId value) {
    if (gone_.contains(value.node)) return true;
    return &graph_.op(value.node) == Operators::constant() && steps_.has_data(value.node);
  }

  // Whether nothing else sees the memory of its outputs.
  bool is_free(NodeId node) const {
    for (uint32_t index = 0; index < graph_.output_count(node); ++index) {
      const ValueId value{node, index};
      if (returned_.contains(aliases_.root(value))) return false;
      if (aliases_.writer_of(value) != kNoNode) return false;
    }
    return true;
  }

  void fold(NodeId node) {
    if (steps_.reads_graph()) {
      std::vector<ValueId> computed;
      for_each_value(graph_.all_arguments(node), [&](ValueId value) {
        if (gone_.contains(value.node)) computed.push_back(value);
      });
      for (const ValueId value : computed) make_constant(value);
    }
    const size_t count = steps_.evaluate(node);
    if (count != graph_.output_count(node)) {
      throw_error(ErrorCode::kFailed, "the evaluation of ", in_quotes(graph_.name_text(node)),
                  " gave ", count, " results, it has ", graph_.output_count(node), " outputs");
    }
    folded_.push_back(node);
    gone_.insert(node);
  }

  bool is_read_by_others(ValueId value) const {
    const auto& users = graph_.users(value);
    return std::any_of(users.begin(), users.end(),
                       [&](NodeId user) { return !gone_.contains(user); });
  }

  void make_constant(ValueId output) {
    if (graph_.users(output).empty()) return;  // made for a node before
    const StringId base = Strings::intern(std::string(graph_.name_text(output.node)) + "_folded");
    const NodeId constant = steps_.add_constant(output, base);
    graph_.replace_all_uses(output, {constant, 0});
    aliases_.record(constant);
  }

  Graph& graph_;
  FoldingSteps& steps_;
  AliasAnalysis aliases_;
  std::unordered_set<NodeId> returned_;
  std::vector<NodeId> folded_;
  std::unordered_set<NodeId> gone_;
};

// Providers read what a node reads from the graph, and give data.
class ProvidedFolding : public FoldingSteps {
 public:
  ProvidedFolding(Graph& graph, const Providers& providers)
      : graph_(graph), providers_(providers) {}

  bool has_data(NodeId constant) override { return graph_.payload(constant) != nullptr; }
  bool can_fold(NodeId) override { return true; }
  bool reads_graph() const override { return true; }

  size_t evaluate(NodeId node) override {
    try {
      return (results_[node] = providers_.evaluate(graph_, node)).size();
    } catch (const EngineError& error) {
      refuse(graph_, node, error);
    }
  }

  NodeId add_constant(ValueId output, StringId base) override {
    const NodeId constant = graph_.add_constant(base);
    graph_.set_meta({constant, 0}, graph_.meta(output));
    graph_.set_payload(constant, std::move(results_.at(output.node)[output.index]));
    return constant;
  }

 private:
  Graph& graph_;
  const Providers& providers_;
  std::unordered_map<NodeId, std::vector<ConstantData>> results_;
};

}  // namespace

uint64_t infer_shapes(Graph& graph, const Providers& providers) {
  uint64_t count = 0;
  for (NodeId node = graph.first(); node != graph.last(); node = graph.next(node)) {
    if (is_structure(graph, node) || graph.output_count(node) == 0) continue;
    if (graph.desc({node, 0}) != nullptr) continue;
    try {
      providers.infer_shape(graph, node);
    } catch (const EngineError& error) {
      refuse(graph, node, error);
    }
    ++count;
  }
  return count;
}

uint64_t fold_constants(Graph& graph, FoldingSteps& steps) { return Folding(graph, steps).run(); }

uint64_t fold_constants(Graph& graph, const Providers& providers, const Commit& commit) {
  ProvidedFolding steps(graph, providers);
  uint64_t folded = 0;
  transact(graph, "fold_constants", commit, [&] { folded = fold_constants(graph, steps); });
  return folded;
}

uint64_t remove_unread(Graph& graph, const Commit& commit) {
  const size_t before = graph.size();
  transact(graph, "clean_up", commit, [&] {
    std::vector<NodeId> nodes;
    for (NodeId node = graph.first(); node != graph.last(); node = graph.next(node)) {
      if (&graph.op(node) != Operators::input()) nodes.push_back(node);
    }
    graph.erase_dead(nodes);
  });
  return before - graph.size();
}

}  // namespace bringup::engine
