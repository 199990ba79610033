// What a pass may rewrite in a graph, in turn: matches of its patterns, or nodes of its types.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/analysis/alias_analysis.h"
#include "engine/match/found_match.h"
#include "engine/rewrite/rewriter.h"

namespace bringup::engine {

// A pattern made ready for one graph.
struct PatternProgram {
  std::shared_ptr<const Program> program;
  std::vector<uint32_t> objects = {};  // see Matcher
};

// One candidate, until the next is looked for.
class Target {
 public:
  // A node that a decompose pass may replace.
  Target(Graph& graph, NodeId node) : graph_(graph), nodes_{node}, before_(node) {}
  // A match of pattern number `search`.
  Target(Graph& graph, size_t search, const Program& program, PlacedMatch found);

  Graph& graph() const { return graph_; }
  bool is_match() const { return program_ != nullptr; }
  // What is replaced, in graph order; of a decompose pass, the node.
  const std::vector<NodeId>& nodes() const { return nodes_; }
  NodeId node() const { return nodes_.front(); }

  // Of a match.
  size_t search() const { return search_; }
  const std::string& pattern_name() const { return program_->root().pattern->name; }
  const Bindings& bound() const { return *bound_; }
  const std::vector<ValueId>& inputs() const { return inputs_; }
  const std::vector<ValueId>& outputs() const { return outputs_; }
  // A copy that stays as it is whatever the hooks do; to be asked for before they edit the graph.
  const Match& match();

  // What a replacement with `outputs` outputs takes the place of.
  Boundary::Part part(size_t outputs) const;

 private:
  Graph& graph_;
  std::vector<NodeId> nodes_;
  NodeId before_;
  std::vector<NodeId> hoist_;
  size_t search_ = 0;
  const Program* program_ = nullptr;
  const Bindings* bound_ = nullptr;
  std::vector<ValueId> inputs_;  // kNoNode where only absent parts read it
  std::vector<ValueId> outputs_;
  std::optional<FoundMatch> match_;
};

class Targets {
 public:
  virtual ~Targets() = default;

  // How many things are looked for, one after the other.
  virtual size_t searches() const = 0;
  // Looks for number `search` from here on, among what is there now.
  virtual void start(size_t search) = 0;
  // Goes to the next candidate that is still there; null: there is none any more.
  virtual Target* next() = 0;
  // Why it is not replaced, whatever the pass says.
  virtual std::optional<std::string> refusal() const { return std::nullopt; }
  // Notes that it was left alone.
  virtual void refuse(const std::string& reason) = 0;
  // What came closest since `start`.
  virtual const std::optional<NearMiss>& near_miss() const = 0;
};

// Graph, types and aliases must live longer. Aliases may be made anew where they are.
std::unique_ptr<Targets> nodes_of_types(Graph& graph, std::span<const std::string> op_types,
                                        const AliasAnalysis& aliases);
std::unique_ptr<Targets> matches_of(Graph& graph, std::vector<PatternProgram> patterns,
                                    const AliasAnalysis& aliases);

// What the inputs of a node's replacement stand for: every value that it reads, each once.
std::vector<ValueId> values_read(const Graph& graph, NodeId node);
// What a replacement's outputs stand for: those of the node that are read, if as many; else all.
std::vector<ValueId> values_computed(const Graph& graph, NodeId node, size_t wanted);

}  // namespace bringup::engine
