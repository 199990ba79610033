#include "engine/rewrite/folding.h"

#include <algorithm>
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
  throw EngineError(error.code(), "at " + quoted(graph.name_text(node)) + " (" +
                                      std::string(Strings::text(graph.type(node))) +
                                      "): " + error.what());
}

bool is_structure(const Graph& graph, NodeId node) {
  const Operator* op = &graph.op(node);
  return op == Operators::input() || op == Operators::constant() || op == Operators::output();
}

class Folding {
 public:
  Folding(Graph& graph, const Providers& providers)
      : graph_(graph), providers_(providers), aliases_(graph, true) {
    for (const ValueId value : graph.outputs()) returned_.insert(aliases_.root(value));
  }

  uint64_t run() {
    uint64_t folded = 0;
    for (NodeId node = graph_.first(); node != graph_.last();) {
      const NodeId next = graph_.next(node);
      if (is_foldable(node)) {
        fold(node);
        ++folded;
      }
      node = next;
    }
    return folded;
  }

 private:
  bool is_foldable(NodeId node) const {
    if (is_structure(graph_, node) || graph_.output_count(node) == 0 || !graph_.pure(node)) {
      return false;
    }
    bool reads = false, known = true;
    for_each_value(graph_.all_arguments(node), [&](ValueId value) {
      reads = true;
      known = known && graph_.payload(value.node) != nullptr;
    });
    return reads && known && is_free(node);
  }

  // Whether nobody else sees the memory of its outputs.
  bool is_free(NodeId node) const {
    for (uint32_t index = 0; index < graph_.output_count(node); ++index) {
      const ValueId value{node, index};
      if (returned_.contains(aliases_.root(value))) return false;
      if (aliases_.writer_of(value) != kNoNode) return false;
    }
    return true;
  }

  void fold(NodeId node) {
    std::vector<ConstantData> results = evaluate(node);
    if (results.size() != graph_.output_count(node)) {
      throw EngineError(ErrorCode::kFailed,
                        "the evaluation of " + quoted(graph_.name_text(node)) + " gave " +
                            std::to_string(results.size()) + " results, it has " +
                            std::to_string(graph_.output_count(node)) + " outputs");
    }
    for (uint32_t index = 0; index < results.size(); ++index) {
      if (graph_.users({node, index}).empty()) continue;
      const StringId base = Strings::intern(std::string(graph_.name_text(node)) + "_folded");
      const NodeId constant = graph_.add_constant(base);
      graph_.set_meta({constant, 0}, graph_.meta({node, index}));
      graph_.set_payload(constant, std::move(results[index]));
      graph_.replace_all_uses({node, index}, {constant, 0});
      aliases_.record(constant);
    }
    graph_.erase_dead({&node, 1});
  }

  std::vector<ConstantData> evaluate(NodeId node) {
    try {
      return providers_.evaluate(graph_, node);
    } catch (const EngineError& error) {
      refuse(graph_, node, error);
    }
  }

  Graph& graph_;
  const Providers& providers_;
  AliasAnalysis aliases_;
  std::unordered_set<NodeId> returned_;
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

uint64_t fold_constants(Graph& graph, const Providers& providers, const Commit& commit) {
  uint64_t folded = 0;
  transact(graph, "fold_constants", commit, [&] { folded = Folding(graph, providers).run(); });
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
